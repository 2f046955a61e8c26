package relayconn

import (
	"testing"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// TestALevelThatIsNotKnown is passed over.
func TestALevelThatIsNotKnown(t *testing.T) {
	t.Parallel()
	targets := NewTargets(nil, &world{}, 0, 0, nil, quiet)
	w := targets.Of("r.example.com")
	targets.wanted["r.example.com"], w.read = w, true
	for level, want := range map[proto.Level]int{proto.LevelStateOnly: 1, "half": 1} {
		to := proto.Target{URL: "wss://r.example.com", Repos: map[string]proto.Wanted{x: {Level: level}}}
		messages, err := to.Messages("r.example.com")
		must(t, err)
		for subject, data := range messages {
			targets.takeWanted(bus.Message{Subject: subject, Data: data, Seq: w.seq + 1})
		}
		if now, _ := w.Now(); len(now.Items.States) > want {
			t.Errorf("level %q: %+v is wanted", level, now.Items)
		}
	}
}
