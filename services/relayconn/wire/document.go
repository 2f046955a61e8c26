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

// Stated is how much a relay says, in the document about itself (NIP-11), that it lets a client
// ask; 0: it does not say. A stranger writes it, so it is bounded, what is odd in it is passed
// over, and nothing relies on it.
type Stated struct {
	Subscriptions int `json:"max_subscriptions"` // open at once on a connection
	Events        int `json:"max_limit"`         // of one filter
	Filters       int `json:"max_filters"`       // of one subscription
	Bytes         int `json:"max_message_length"`

	Private bool `json:"-"` // it is a private service: its supported_grasps name GRASP-08
}

// FetchDocument asks the relay of a ws or wss URL. The client is one of the guard, because a
// stranger wrote the URL.
func FetchDocument(ctx context.Context, client *http.Client, url string) (limits Stated, err error) {
	ctx, cancel := context.WithTimeout(ctx, documentTime)
	defer cancel()
	// https is to wss what http is to ws.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http"+strings.TrimPrefix(url, "ws"), nil)
	if err != nil {
		return limits, err
	}
	req.Header.Set("Accept", "application/nostr+json")
	res, err := client.Do(req)
	if err != nil {
		return limits, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return limits, errors.New(res.Status)
	}
	var grasps []string
	err = json.NewDecoder(netguard.LimitBody(res.Body, documentBytes)).Decode(&struct {
		Limits *Stated   `json:"limitation"`
		Grasps *[]string `json:"supported_grasps"`
	}{&limits, &grasps})
	limits.Private = slices.Contains(grasps, "GRASP-08")
	if _, odd := errors.AsType[*json.UnmarshalTypeError](err); odd {
		err = nil // the rest is read
	}
	return limits, err
}
