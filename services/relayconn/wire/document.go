package wire

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/netguard"
)

const (
	documentBytes = 64 << 10
	documentTime  = 10 * time.Second
)

// Stated is how much a relay says that it lets a client ask; 0: it does not say.
type Stated struct {
	Subscriptions int `json:"max_subscriptions"` // open at once on a connection
	Events        int `json:"max_limit"`         // of one filter
	Filters       int `json:"max_filters"`       // of one subscription
	Bytes         int `json:"max_message_length"`
}

// Document is what a relay tells about itself (NIP-11): how much it lets clients ask, and what it
// can do. A stranger writes it, so it is bounded, what is odd in it is passed over, and nothing
// relies on it. The zero value tells nothing.
type Document struct {
	Limits Stated `json:"limitation"`
	NIPs   []int  `json:"supported_nips"`
}

// Supports reports whether the relay may support a NIP: it says so, or it does not say what it
// supports.
func (d Document) Supports(nip int) bool {
	return !slices.ContainsFunc(d.NIPs, func(n int) bool { return n > 0 }) || slices.Contains(d.NIPs, nip)
}

// FetchDocument asks the relay of a ws or wss URL. The client is one of the guard, because a
// stranger wrote the URL.
func FetchDocument(ctx context.Context, client *http.Client, url string) (d Document, err error) {
	ctx, cancel := context.WithTimeout(ctx, documentTime)
	defer cancel()
	// https is to wss what http is to ws.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http"+strings.TrimPrefix(url, "ws"), nil)
	if err != nil {
		return d, err
	}
	req.Header.Set("Accept", "application/nostr+json")
	res, err := client.Do(req)
	if err != nil {
		return d, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return d, errors.New(res.Status)
	}
	err = json.NewDecoder(netguard.LimitBody(res.Body, documentBytes)).Decode(&d)
	if _, odd := errors.AsType[*json.UnmarshalTypeError](err); odd {
		err = nil // the rest is read
	}
	return d, err
}
