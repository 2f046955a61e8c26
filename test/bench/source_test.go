package bench

import (
	"net/http"
	"strings"
	"testing"

	"tendril.dev/test/bench/feed"
	"tendril.dev/test/corpus"
	"tendril.dev/test/world"
)

// TestSource: the program that the rows sync from has what it was given at every relay, counts what
// goes through it, and takes no client while it is shut.
func TestSource(t *testing.T) {
	t.Parallel()
	f, err := feed.Start(world.Program(t, "test/bench/source"), "-relays", "2", "-page", "30")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Errorf("it ended: %v", err)
		}
	})
	path, err := corpus.File(corpus.Spec{Repositories: 2, Roots: 40, Comments: 1}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.LoadFile(path); err != nil {
		t.Fatal(err)
	}
	more := corpus.Threads(corpus.Spec{Repositories: 2}, 40, 5)
	if err := f.Load(more...); err != nil {
		t.Fatal(err)
	}
	if err := f.Load([]byte("no event")); err == nil {
		t.Error("it takes what is no event")
	}
	for _, url := range f.Relays {
		c := dial(t, url)
		for filter, want := range map[string]int{`{"kinds":[1111]}`: 30, `{"kinds":[1621]}`: 23, `{"kinds":[1617,1621],"limit":7}`: 7} {
			if n, err := c.request(filter); n != want || err != nil {
				t.Errorf("%s for %s: %d events, %v; want %d", url, filter, n, err, want)
			}
		}
	}
	report, err := f.Report()
	if err != nil {
		t.Fatal(err)
	}
	if sum := report.Total(); len(report.Relays) != 2 || sum.Connections != 2 || sum.Requests != 6 || sum.Sent != 120 || sum.Out < 120*300 ||
		sum.Connected.IsZero() || sum.Last.Before(sum.Connected) || report.CPU == 0 {
		t.Errorf("it reports %+v, in all %+v", report, sum)
	}
	if err := f.Reset(); err != nil {
		t.Fatal(err)
	}
	if report, err = f.Report(); err != nil || report.Total().Requests != 0 || !report.Total().Connected.IsZero() {
		t.Errorf("after a reset it reports %+v, %v", report.Total(), err)
	}
	for _, shut := range []bool{true, false} {
		if err := f.Shut(shut); err != nil {
			t.Fatal(err)
		}
		resp, err := http.Get("http" + strings.TrimPrefix(f.Relays[1], "ws"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if (resp.StatusCode == http.StatusServiceUnavailable) != shut {
			t.Errorf("shut %v: answered %s", shut, resp.Status)
		}
	}
}
