package intake

import (
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
)

// TestSize: what an event takes is not told by its text alone; tags of nothing take more than they
// have text.
func TestSize(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 100<<10)
	for name, tc := range map[string]struct {
		a           Arrival
		least, most int64
	}{
		"nothing":     {Arrival{Event: &nostr.Event{}}, 1024, 1024},
		"content":     {Arrival{Event: &nostr.Event{Content: text}}, 200 << 10, 204 << 10},
		"with raw":    {Arrival{Event: &nostr.Event{Content: text}, Raw: make([]byte, 150<<10)}, 250 << 10, 254 << 10},
		"empty tags":  {Arrival{Event: &nostr.Event{Tags: make(nostr.Tags, 50_000)}, Raw: make([]byte, 150_000)}, 1_350_000, 1_400_000},
		"one tag":     {Arrival{Event: &nostr.Event{Tags: nostr.Tags{make(nostr.Tag, 50_000)}}, Raw: make([]byte, 150_000)}, 950_000, 1_000_000},
		"very much":   {Arrival{Event: &nostr.Event{Tags: make(nostr.Tags, 350_000)}, Raw: make([]byte, 1<<20)}, streamRoom, streamRoom},
		"a tag value": {Arrival{Event: &nostr.Event{Tags: nostr.Tags{{"d", text}}}}, 200 << 10, 204 << 10},
	} {
		if got := tc.a.size(); got < tc.least || got > tc.most {
			t.Errorf("%s takes %d, want %d to %d", name, got, tc.least, tc.most)
		}
	}
}
