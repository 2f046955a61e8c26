package wire

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"tendril.dev/lib/netguard"
)

const (
	documentBytes = 64 << 10
	maxNIPs       = 1000
	documentTime  = 10 * time.Second
)

// Stated is how much a relay says that it lets a client ask; 0: it does not say.
type Stated struct {
	Subscriptions int // open at once on a connection
	Events        int // of one filter
	Filters       int // of one subscription
	Bytes         int // of one message
}

// Document is what a relay tells about itself (NIP-11): how much it lets clients ask, and what it
// can do. A stranger writes it, so it is bounded, what is odd in it is passed over, and nothing
// relies on it. The zero value tells nothing.
type Document struct {
	Limits Stated
	NIPs   []int // that it supports; empty: it does not say
}

// Supports reports whether the relay may support a NIP: it says so, or it does not say what it
// supports.
func (d Document) Supports(nip int) bool { return len(d.NIPs) == 0 || slices.Contains(d.NIPs, nip) }

// FetchDocument asks the relay of a ws or wss URL. The client is one of the guard, because a
// stranger wrote the URL.
func FetchDocument(ctx context.Context, client *http.Client, url string) (Document, error) {
	ctx, cancel := context.WithTimeout(ctx, documentTime)
	defer cancel()
	// https is to wss what http is to ws.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http"+strings.TrimPrefix(url, "ws"), nil)
	if err != nil {
		return Document{}, err
	}
	req.Header.Set("Accept", "application/nostr+json")
	res, err := client.Do(req)
	if err != nil {
		return Document{}, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return Document{}, errors.New(res.Status)
	}
	data, err := io.ReadAll(netguard.LimitBody(res.Body, documentBytes))
	if err != nil {
		return Document{}, err
	}
	return ParseDocument(data)
}

// ParseDocument reads a document. What is not of the type that it should have is as if it were not
// there.
func ParseDocument(data []byte) (d Document, err error) {
	if !gjson.ValidBytes(data) || !gjson.ParseBytes(data).IsObject() {
		return Document{}, errors.New("parse relay information: not a JSON object")
	}
	doc := gjson.ParseBytes(data)
	for _, nip := range doc.Get("supported_nips").Array() {
		if n := positive(nip); n > 0 && len(d.NIPs) < maxNIPs {
			d.NIPs = append(d.NIPs, n)
		}
	}
	limit := func(name string) int { return positive(doc.Get("limitation." + name)) }
	d.Limits = Stated{
		Subscriptions: limit("max_subscriptions"), Events: limit("max_limit"), Filters: limit("max_filters"), Bytes: limit("max_message_length"),
	}
	return d, nil
}

// positive reads a positive whole number; 0: it is none.
func positive(value gjson.Result) int {
	n := value.Num
	if value.Type != gjson.Number || n < 1 || n > math.MaxInt32 || n != math.Trunc(n) {
		return 0
	}
	return int(n)
}
