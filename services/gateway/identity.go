package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/candidates"
	"tendril.dev/lib/config"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/relay"
)

const (
	// identityAge is how old the service's profile and relay list claim to be when they are made: what
	// an operator has published with the key anywhere is newer, and stays. Many relays refuse what is
	// older than three years.
	identityAge = 2 * 365 * 24 * time.Hour
	// storeFirst is how long after a failure the service's identity is offered again, and storeMost
	// the longest wait after several.
	storeFirst, storeMost = 2 * time.Second, time.Hour
)

// identity is what the service says of itself, without a signature: a profile and a relay list.
// Replicas that start on the same day say the same.
func identity(s config.Settings, now time.Time) []*nostr.Event {
	profile := map[string]any{"name": s.Domain, "bot": true}
	if s.BasePath == "" {
		profile["nip05"] = "_@" + s.Domain
	}
	text, _ := json.Marshal(profile) // of strings
	at := nostr.Timestamp(now.Truncate(24 * time.Hour).Add(-identityAge).Unix())
	return []*nostr.Event{
		{Kind: nostr.KindProfile, CreatedAt: at, Tags: nostr.Tags{}, Content: string(text)},
		{Kind: nostr.KindRelayList, CreatedAt: at, Tags: nostr.Tags{{"r", s.URL("ws")}}},
	}
}

// introduce stores the service's profile and relay list, unless it has some, and tries again until
// both are here. Package relayconn publishes them.
func introduce(ctx context.Context, n *node.Node, ingest relay.Offerer) {
	backoff.Retry(ctx, storeFirst, storeMost, func() error { return storeIdentity(ctx, n, ingest) }, func(err error) {
		n.Log.Debug("the service's own profile or relay list is not stored yet", "error", err)
	})
}

func storeIdentity(ctx context.Context, n *node.Node, ingest relay.Offerer) error {
	ctx, cancel := context.WithTimeout(ctx, relay.DefaultBounds.EventTimeout)
	defer cancel()
	key, err := n.Settings.LoadKey(".")
	if err == nil {
		err = n.Accepted.CatchUp(ctx)
	}
	if err != nil {
		return err
	}
	has := map[int]bool{}
	own := nostr.Filter{Kinds: []int{nostr.KindProfile, nostr.KindRelayList}, Authors: []string{key.Public}}
	for ev, err := range n.Accepted.Query(ctx, own) {
		if err != nil {
			return err
		}
		has[ev.Kind] = true
	}
	for _, ev := range identity(n.Settings, time.Now()) {
		if has[ev.Kind] {
			continue
		}
		if err := key.Sign(ev); err != nil {
			return err
		}
		if err := offerAndWait(ctx, ingest, ev); err != nil {
			return err
		}
	}
	return nil
}

// offerAndWait offers an event as a user's, and waits until it is accepted.
func offerAndWait(ctx context.Context, ingest relay.Offerer, ev *nostr.Event) error {
	decided := make(chan error, 1)
	err := ingest.Offer(ctx, candidates.Candidate{Event: ev, Lane: proto.LaneUser, Source: proto.SourceUser,
		Done: func(v proto.Verdict, err error) {
			if err == nil && !v.OK() {
				err = errors.New(v.Message)
			}
			decided <- err
		}})
	if err != nil {
		return err
	}
	select {
	case err := <-decided:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
