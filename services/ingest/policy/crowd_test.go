package policy_test

import (
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
	"tendril.dev/services/ingest/held"
	"tendril.dev/services/ingest/policy"
)

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
