package relayread_test

import (
	"context"
	"encoding/json"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"tendril.dev/cmd/tendril/relayread"
)

// TestOddMessagesAreCheap: messages that are large, and made to cost as much as can be, cost about
// what their length is, and what comes besides is read. It does not run beside others, whose memory
// would be counted too.
func TestOddMessagesAreCheap(t *testing.T) {
	// A goroutine whose stack grows larger ends the process.
	defer debug.SetMaxStack(debug.SetMaxStack(64 << 20))
	for name, odd := range map[string]func(id string) string{
		"lists in lists":     func(id string) string { return `["EVENT","` + id + `",` + strings.Repeat("[", 4_000_000) },
		"lists that end":     func(id string) string { return strings.Repeat("[", 2_000_000) + strings.Repeat("]", 2_000_000) },
		"many elements":      func(id string) string { return `["EVENT","` + id + `"` + strings.Repeat(",1", 2_000_000) + "]" },
		"an object":          func(string) string { return `{"EVENT":"page-1"}` },
		"nothing":            func(string) string { return "" },
		"an event of events": func(id string) string { return `["EVENT","` + id + `",{"id":[{}],"created_at":{}},{}]` },
	} {
		t.Run(name, func(t *testing.T) {
			r := &relay{events: events(20, 3), most: 500}
			r.instead = func(_ int, id string, ws *websocket.Conn) bool {
				ws.Write(context.Background(), websocket.MessageText, []byte(odd(id)))
				say(ws, "NOTICE", 17, json.RawMessage(`{}`))
				return false
			}
			var before, after runtime.MemStats
			url := r.start(t)
			runtime.ReadMemStats(&before)
			got, err := ids(t, relayread.New(url, nil).Hasten().Open(t.Context()))
			runtime.ReadMemStats(&after)
			if err != nil || !slices.Equal(got, idsOf(r.events)) {
				t.Errorf("%d of %d came: %v", len(got), len(r.events), err)
			}
			if made := after.TotalAlloc - before.TotalAlloc; made > 200<<20 {
				t.Errorf("it took %d MiB", made>>20)
			}
		})
	}
}
