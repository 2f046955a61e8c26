package writer

import (
	"context"
	"sync/atomic"
	"testing"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

// TestUsersAreToldOfAFullDisk at once, whether the writer's term has begun before or not. Nothing is
// lost of what came another way.
func TestUsersAreToldOfAFullDisk(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"in a term": true, "before it begins": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var full atomic.Bool
			full.Store(!before)
			b, err := bus.Open(context.Background(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing(), Disk: bus.Disk{
				IsFull:  func(string) bool { return full.Load() },
				HasRoom: func(string) bool { return false },
			}})
			must(t, err)
			t.Cleanup(b.Close)
			r, s := start(t, b, "writer"), newSender(t, b)
			alice := newPerson(1)
			var accepted []*nostr.Event
			if before {
				accepted = manyGrasps(1, 1)
				s.ask(proto.Accepted, proto.LaneUser, accepted[0])
				full.Store(true)
			}
			writable, stop := b.WhileWritable(t.Context())
			defer stop()
			fixture.Receive(t, "the disk is full", writable.Done())
			s.send(proto.LaneSyncHistoric, manyGrasps(5, 1)...)
			for n := range 2 {
				v := s.ask(proto.Rejected, proto.LaneUser, alice.announcement("tree", int64(100+n)))
				if v.Message != messageFull || v.RetryAt == 0 {
					t.Errorf("%+v", v)
				}
			}
			wantLog(t, b, accepted...)
			if err := r.Troubled(); err != nil {
				t.Errorf("a full disk is no failure of the writer: %v", err)
			}
			waits, err := b.JS.Stream(t.Context(), proto.StreamSync)
			must(t, err)
			if n := waits.CachedInfo().State.Msgs; n != 1 {
				t.Errorf("%d packs of relays wait, want 1", n)
			}
		})
	}
}
