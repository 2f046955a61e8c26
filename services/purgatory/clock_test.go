package purgatory

import (
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/hunt"
)

// TestStanding: when the time of a held event is over.
func TestStanding(t *testing.T) {
	t.Parallel()
	const hold = 30 * time.Minute
	for name, tc := range map[string]struct {
		age    time.Duration // since its clock began
		opened time.Duration // since this worker has the shard
		tried  bool
		lasts  bool
		phase  proto.Phase
		want   standing
		again  time.Duration // from now
	}{
		"new":                              {time.Minute, 2 * hold, true, false, "", standing{}, 29 * time.Minute},
		"over":                             {hold, 2 * hold, true, false, "", standing{over: true}, 0},
		"over, not tried yet":              {hold, 2 * hold, false, false, "", standing{over: true}, 0},
		"overdue at a start, not tried":    {2 * hold, time.Minute, false, false, "", standing{}, 4 * time.Minute},
		"overdue at a start, tried":        {2 * hold, time.Minute, true, false, "", standing{over: true}, 0},
		"overdue at a start, not in time":  {2 * hold, 5 * time.Minute, false, false, "", standing{over: true}, 0},
		"the newest state":                 {hold, 2 * hold, true, true, "", standing{rare: true}, 30*24*time.Hour - hold},
		"the newest state, after 30 days":  {30 * 24 * time.Hour, 60 * 24 * time.Hour, true, true, "", standing{over: true, rare: true}, 0},
		"the newest state, while it waits": {time.Minute, 2 * hold, true, true, "", standing{}, 29 * time.Minute},
		"silent":                           {time.Minute, 2 * hold, true, false, proto.PhaseSilent, standing{}, 29 * time.Minute},
		"silent, over":                     {hold, time.Minute, false, false, proto.PhaseSilent, standing{over: true}, 0},
	} {
		now := time.Now()
		if tc.phase == "" {
			tc.phase = proto.PhaseWaiting
		}
		e := &held.Entry{Held: proto.Held{Event: &nostr.Event{}, Phase: tc.phase, ExpiresAt: now.Add(hold - tc.age)}}
		c := clock{now: now, opened: now.Add(-tc.opened), hold: hold, hunt: hunt.Status{Tried: tc.tried}}
		got := c.standing(e, tc.lasts)
		if again := got.again.Sub(now); got.over != tc.want.over || got.rare != tc.want.rare || !got.over && again != tc.again {
			t.Errorf("%s: %+v, again in %v, want %+v in %v", name, got, again, tc.want, tc.again)
		}
	}
}

// TestTimeInAQueueDoesNotCount: an event that waited for its host's turn for an hour has its time
// left.
func TestTimeInAQueueDoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const hold = 30 * time.Minute
		began := time.Now()
		waited := hunt.WaitedBetween(began.Add(time.Minute), began.Add(time.Hour))
		e := &held.Entry{Held: proto.Held{Event: &nostr.Event{}, Phase: proto.PhaseWaiting, ExpiresAt: began.Add(hold)}}
		for at, over := range map[time.Duration]bool{hold: false, time.Hour: false, 89*time.Minute - 1: false, 89 * time.Minute: true} {
			c := clock{now: began.Add(at), opened: began, hold: hold, hunt: hunt.Status{Tried: true, Waited: waited}}
			if got := c.standing(e, false); got.over != over {
				t.Errorf("after %v: %+v", at, got)
			}
		}
	})
}
