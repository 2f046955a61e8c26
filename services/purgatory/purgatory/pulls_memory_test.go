package purgatory

import (
	"testing"
	"time"

	"tendril.dev/proto"
)

// TestPullsAreForgottenWithTheirIdentifier: nothing stays of an identifier that is not hosted any
// more, or whose shard has gone; what others need of the same event does.
func TestPullsAreForgottenWithTheirIdentifier(t *testing.T) {
	t.Parallel()
	p, now := newPulls(), time.Now()
	p.note("x", "owed", true, now)
	p.note("x", "settled", false, now)
	p.note("x", "both", false, now)
	p.note("y", "both", false, now)
	p.forget("x")
	if p.known("owed") || p.known("settled") || !p.known("both") {
		t.Errorf("known after x has gone: %v", p.at)
	}
	p.drop(proto.ShardOf("y"))
	if len(p.at) != 0 || len(p.by) != 0 {
		t.Errorf("left after y's shard has gone: %v %v", p.at, p.by)
	}
}
