package backfill

import (
	"testing"
	"time"

	"tendril.dev/services/relayconn/leads"
)

// TestUnreadOnce: a time in which nothing was read makes a lead last longer by that time, however
// many of its parts are open.
func TestUnreadOnce(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	_, _, lead := leads.New().Take([]string{"a"}, began)
	b := &Backfill{open: map[string]*Request{
		"h1": {task: &task{lead: lead}}, "h2": {task: &task{lead: lead}}, "h3": {task: &task{}},
	}}
	b.Unread(10 * time.Second)
	if at := began.Add(25 * time.Second); lead.Over(at.Add(-1)) || !lead.Over(at) {
		t.Error("the lead is not lost 15 s and the 10 s after its begin")
	}
}
