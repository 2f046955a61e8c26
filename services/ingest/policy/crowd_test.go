package policy_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
	"tendril.dev/services/ingest/held"
	"tendril.dev/services/ingest/policy"
)

func (w *world) HeldLoad(author string) held.Load {
	var load held.Load
	for _, e := range w.held {
		load.Bytes += len(e.Event.String())
		if e.Event.PubKey == author {
			load.OfAuthor++
		}
	}
	return load
}

// TestPurgatoryIsBounded, by author and in all: what is refused is not remembered, and what replaces a held event needs no room.
func TestPurgatoryIsBounded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		perAuthor, bytes int
		refused          []string // authors whose next one is
	}{
		"unbounded":  {0, 0, nil},
		"with room":  {2, 1 << 20, nil},
		"per author": {1, 1 << 20, []string{alice}},
		"in all":     {2, 100, []string{alice, bob}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := settings()
			s.HeldPerAuthor, s.HeldBytes = tc.perAuthor, tc.bytes
			rules, err := policy.New(s, time.Now)
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
			}
			if d, err := rules.Decide(w, user(announce(alice, "x", 1001))); err != nil || d.Outcome != proto.HeldBack || len(d.Drop) != 1 {
				t.Errorf("the newer announcement: %+v, %v", d, err)
			}
		})
	}
}

// counting counts how often the held events of an identifier are looked through.
type counting struct {
	policy.Knowledge
	looks int
}

func (k *counting) HeldOf(identifier string) []*held.Entry {
	k.looks++
	return k.Knowledge.HeldOf(identifier)
}

// TestRepeatedTagsCostNothing: a deletion request may name an address ten thousand times, or ones that are never held.
func TestRepeatedTagsCostNothing(t *testing.T) {
	t.Parallel()
	rules, err := policy.New(settings(), time.Now)
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
