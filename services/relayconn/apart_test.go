package relayconn

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
)

// TestNobodySaysWhatIsAccepted: a worker without an index that gets no answers claims its relays,
// says on /readyz what it lacks, and asks and offers nothing. When answers come it goes on, what is
// accepted already is neither verified nor offered, and so it is after an interruption.
func TestNobodySaysWhatIsAccepted(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	judge := newIngest(t, b)
	var past []*nostr.Event
	for n := range 100 {
		ev := event(t, 1621, fmt.Sprint("issue ", n), time.Hour+time.Duration(n)*time.Minute, nostr.Tag{"a", "30617:aa:x"})
		past = append(past, ev)
		if n < 60 { // these came before, on another worker
			if err := judge.log(ev); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := newForeign(t, past...)
	w := startWorker(t, b, "a", node.Service{Name: "relayconn", Run: Run, Asks: true})
	if w.Index != nil {
		t.Fatal("the worker has an index")
	}
	aim(t, b, r.URL, wanting(r.URL, "30617:aa:x"))
	lacks := func() bool { return strings.Contains(w.Ready.Failing()["accepted events"], "no ingest") }
	eventually(t, "it is claimed", func() bool { return holder(t, b, r.Name) == "a" && lacks() })
	if !lacks() || len(judge.all()) > 0 {
		t.Errorf("it is not ready because %v, and has offered %d events", w.Ready.Failing(), len(judge.all()))
	}
	index := newIndex(t, b)
	eventually(t, "it is synced", func() bool { return state(t, b, r.Name).Connection == int(session.Connected) })
	if n := len(judge.all()); n != 40 {
		t.Errorf("%d were offered, want 40", n)
	}
	if known, verified := w.metric(t, "ngit_sync_events_known_total"), w.metric(t, "ngit_sync_events_verified_total", "result=genuine"); known != 60 || verified != 40 {
		t.Errorf("%v were said to be accepted and %v were verified", known, verified)
	}
	if failing := w.Ready.Failing(); len(failing) > 0 {
		t.Errorf("not ready: %v", failing)
	}
	index.kill()
	r.publish(event(t, 1621, "live", 0, nostr.Tag{"a", "30617:aa:x"}))
	eventually(t, "it says that nobody answers", lacks)
	if len(judge.all()) != 40 || holder(t, b, r.Name) != "a" {
		t.Errorf("%d were offered; the relay is %q's", len(judge.all()), holder(t, b, r.Name))
	}
	newIndex(t, b)
	eventually(t, "what is live comes", func() bool { return judge.has("live sync.live live") && len(w.Ready.Failing()) == 0 })
}
