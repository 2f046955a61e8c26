package policy_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// TestPurgatoryIsBounded, by author and in all: what is refused is not remembered, what replaces a
// held event needs no room of its own, and what is full in all makes room (held.Ledger has the
// rest).
func TestPurgatoryIsBounded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		perAuthor, bytes int
		refused          []string // authors whose next one is
		evicts           bool
	}{
		"unbounded":  {0, 0, nil, false},
		"with room":  {2, 1 << 20, nil, false},
		"per author": {1, 1 << 20, []string{alice}, false},
		"in all":     {2, 2000, nil, true},
		"too small":  {2, 100, []string{alice, bob}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bounds := policy.Bounds{Bytes: tc.bytes, Author: policy.Load{Events: tc.perAuthor}}
			rules, err := policy.New(settings(), bounds, time.Now)
			if err != nil {
				t.Fatal(err)
			}
			w := new(world).hold(announce(alice, "x", 1000))
			for _, author := range []string{alice, bob} {
				d, err := rules.Decide(w, user(announce(author, "y", 1000)))
				if err != nil {
					t.Fatal(err)
				}
				if refused := slices.Contains(tc.refused, author); refused != (d.Outcome == proto.Rejected) || refused && (d.Remember || !strings.HasPrefix(d.Message, "rate-limited: ")) {
					t.Errorf("%.4s…: %+v", author, d)
				}
				if evicts := len(d.Drop) == 1 && d.Drop[0].Evicted && d.Drop[0].Remember == ""; evicts != tc.evicts {
					t.Errorf("%.4s…: drops %+v", author, d.Drop)
				}
			}
			if name == "too small" {
				return
			}
			if d, err := rules.Decide(w, user(announce(alice, "x", 1001))); err != nil || d.Outcome != proto.HeldBack || len(d.Drop) != 1 || d.Drop[0].Evicted {
				t.Errorf("the newer announcement: %+v, %v", d, err)
			}
		})
	}
}

// counting counts how often held events are looked for.
type counting struct {
	policy.Knowledge
	looks int
}

func (k *counting) Held() *held.Directory {
	k.looks++
	return k.Knowledge.Held()
}

// TestRepeatedTagsCostNothing: a deletion request may name an address ten thousand times, or ones
// that are never held.
func TestRepeatedTagsCostNothing(t *testing.T) {
	t.Parallel()
	rules, err := policy.New(settings(), policy.Bounds{}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	var tags nostr.Tags
	for range 1000 {
		tags = append(tags, nostr.Tag{"a", "30618:" + alice + ":x"}, nostr.Tag{"a", "30023:" + alice + ":x"})
	}
	k := &counting{Knowledge: &world{}}
	request := &nostr.Event{Kind: 5, PubKey: alice, CreatedAt: 1000, Tags: tags}
	request.ID = request.GetID()
	if d, err := rules.Decide(k, user(request)); err != nil || d.Outcome != proto.Accepted {
		t.Fatalf("%+v, %v", d, err)
	}
	if k.looks > 2 {
		t.Errorf("%d looks through what is held", k.looks)
	}
}
