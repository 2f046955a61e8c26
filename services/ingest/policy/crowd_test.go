package policy_test

import (
	"testing"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

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
	rules := rulesOf(t, settings(), policy.Bounds{})
	var tags nostr.Tags
	for range 1000 {
		tags = append(tags, nostr.Tag{"a", "30618:" + alice + ":x"}, nostr.Tag{"a", "30023:" + alice + ":x"})
	}
	k := &counting{Knowledge: &world{}}
	request := &nostr.Event{Kind: 5, PubKey: alice, CreatedAt: 1000, Tags: tags}
	request.ID = request.GetID()
	if d := rules.Decide(k, user(request)); d.Outcome != proto.Accepted {
		t.Fatalf("%+v", d)
	}
	if k.looks > 2 {
		t.Errorf("%d looks through what is held", k.looks)
	}
}
