package writer

import (
	"slices"
	"testing"
	"time"

	"tendril.dev/proto"
)

const ms = time.Millisecond

func TestFewAreCommittedOneByOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		costs
		waiting, most int
		want          bool
	}{
		"one":                              {costs{lone: ms, small: 5 * ms}, 1, mostLone, true},
		"as many as a batch costs":         {costs{lone: ms, small: 5 * ms}, 5, mostLone, true},
		"more than a batch costs":          {costs{lone: ms, small: 5 * ms}, 6, mostLone, false},
		"too many":                         {costs{lone: ms, small: 500 * ms}, mostLone + 1, mostLone, false},
		"batches that cost no more":        {costs{lone: ms, small: ms}, 2, mostLone, false},
		"not at all":                       {costs{lone: ms, small: 5 * ms}, 1, 0, false},
		"before anything has been learned": {firstCosts(), 2, mostLone, true},
	} {
		if got := c.few(c.waiting, c.most); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestOlderEventsAreAsManyAsKeepACommitShort(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		each       time.Duration
		most, want int
	}{
		"fast":           {10 * time.Microsecond, 1000, 1000},
		"ordinary":       {80 * time.Microsecond, 1000, 187},
		"slow":           {ms, 1000, 125},
		"a small batch":  {ms, 3, 3},
		"batches of one": {time.Second, 1, 1},
	} {
		if got := (costs{each: c.each}).older(c.most); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestCostsAreLearned(t *testing.T) {
	t.Parallel()
	c := firstCosts()
	for range 100 {
		c.learn(0, time.Hour)
		c.learn(1, 2*ms)
		c.learn(10, 20*ms)
		c.learn(400, 40*ms)
	}
	near := func(got, want time.Duration) bool { return got > want*99/100 && got < want*101/100 }
	if !near(c.lone, 2*ms) || !near(c.small, 20*ms) || !near(c.each, 100*time.Microsecond) {
		t.Errorf("%+v", c)
	}
	// Once the machine stands still for an hour that is not what is expected of the next commit.
	if c.learn(1, time.Hour); c.lone > 3*ms {
		t.Errorf("one slow commit makes %v of 2 ms", c.lone)
	}
	for range 1000 {
		c.learn(1, 0)
		c.learn(400, 0)
	}
	if c.lone <= 0 || c.each <= 0 {
		t.Errorf("%+v", c)
	}
}

func TestWhenABatchMayHaveOlderEvents(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		traffic
		want bool
	}{
		"nothing urgent": {traffic{}, true},
		"nothing urgent, others are being committed":         {traffic{flying: true}, true},
		"urgent ones lately":                                 {traffic{recent: true}, true},
		"urgent ones lately, and others are being committed": {traffic{recent: true, flying: true}, false},
		"an urgent one waits":                                {traffic{recent: true, wait: true}, false},
		"an urgent one waits for a commit":                   {traffic{recent: true, wait: true, flying: true}, false},
		"enough urgent ones went before":                     {traffic{recent: true, wait: true, since: mostLone}, true},
		"enough, and others are being committed":             {traffic{recent: true, flying: true, since: mostLone}, true},
	} {
		if got := c.mayHaveOlder(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestWhatOlderEventsWaitFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		older, urgent, decided int
		want                   bool
	}{
		"older ones":                        {older: 3, decided: 3, want: true},
		"older ones with others":            {older: 1, urgent: 1, decided: 3, want: true},
		"a live one":                        {urgent: 1, decided: 1, want: true},
		"live ones, one of them unreadable": {urgent: 3, decided: 2, want: true},
		"releases":                          {decided: 3},
		"a live one with releases":          {urgent: 1, decided: 3},
	} {
		b := batch{older: c.older, urgent: c.urgent, decided: make([]decided, c.decided)}
		if got := b.keepsOlder(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestALiveEventIsCommittedBetweenOlderOnes: it is in the log right behind the older events whose
// commit it came into, which are few because live ones had come before, though a thousand wait.
func TestALiveEventIsCommittedBetweenOlderOnes(t *testing.T) {
	t.Parallel()
	r, g, seen, s := heldAtGate(t, 500, func(w *Writer) { w.mostLone = mostLone })
	g.open.Store(true)
	before := s.ask(proto.LaneSyncLive, newPerson(5000).grasps(1))
	g.open.Store(false)
	past := manyGrasps(0, 1000)
	for pack := range slices.Chunk(past, 250) {
		s.sendPack(proto.LaneSyncHistoric, pack)
	}
	<-g.begun
	live := newPerson(5001).grasps(1)
	s.send(proto.LaneSyncLive, live)
	seen.wait(t, live.ID)
	g.release()
	s.wait(1 + len(past) + 1)
	most := uint64(firstCosts().older(500))
	for _, v := range s.verdicts {
		if v.ID == live.ID && (v.Outcome != proto.Accepted || v.Seq > before.Seq+most+1) {
			t.Errorf("%s at %d, want it at most %d behind the one before, at %d", v.Outcome, v.Seq, most+1, before.Seq)
		}
	}
	if got := len(logIDs(t, r.Bus)); got != len(past)+2 {
		t.Errorf("%d events in the log, want %d", got, len(past)+2)
	}
}

// TestALiveEventIsCommittedBehindAnother: it comes while another is being committed, and is in the
// log right behind that, though a thousand older ones had come before it.
func TestALiveEventIsCommittedBehindAnother(t *testing.T) {
	t.Parallel()
	_, g, seen, s := heldAtGate(t, 500, func(w *Writer) { w.mostLone = mostLone })
	first, second := newPerson(5000).grasps(1), newPerson(5001).grasps(1)
	s.send(proto.LaneSyncLive, first)
	<-g.begun
	past := manyGrasps(0, 1000)
	for pack := range slices.Chunk(past, 250) {
		s.sendPack(proto.LaneSyncHistoric, pack)
	}
	eventually(t, "the older events are in the writer's hands", func() bool { return fetched(s) == 1+4 })
	s.send(proto.LaneSyncLive, second)
	seen.wait(t, second.ID)
	g.release()
	s.wait(2 + len(past))
	at := map[string]uint64{}
	for _, v := range s.verdicts {
		at[v.ID] = v.Seq
	}
	if at[second.ID] != at[first.ID]+1 {
		t.Errorf("the second live event is at %d, want it right behind the first, at %d", at[second.ID], at[first.ID])
	}
}

// TestLiveEventsDoNotStopOlderOnes: where more and more live ones come, older ones are committed
// all the same.
func TestLiveEventsDoNotStopOlderOnes(t *testing.T) {
	t.Parallel()
	_, g, _, s := heldAtGate(t, 100, func(w *Writer) { w.mostLone = mostLone })
	s.send(proto.LaneSyncLive, newPerson(5000).grasps(1))
	<-g.begun
	live := manyGrasps(6000, 300)
	for pack := range slices.Chunk(live, 3) {
		s.sendPack(proto.LaneSyncLive, pack)
	}
	past := newPerson(1).grasps(1)
	s.send(proto.LaneSyncHistoric, past)
	eventually(t, "all of it is in the writer's hands", func() bool { return fetched(s) == 1+len(live)/3+1 })
	g.release()
	s.wait(1 + len(live) + 1)
	last := slices.MaxFunc(s.verdicts, func(a, b proto.Verdict) int { return int(a.Seq) - int(b.Seq) })
	if last.ID == past.ID {
		t.Error("the older event was committed behind all live ones")
	}
}

// fetched is how many messages of all lanes the writer has in its hands.
func fetched(s *sender) (n int) {
	for stream, consumer := range map[string]string{proto.StreamLive: proto.ConsumerLive, proto.StreamSync: proto.ConsumerSync} {
		c, err := s.b.JS.Consumer(s.t.Context(), stream, consumer)
		if err != nil {
			s.t.Fatal(err)
		}
		info, err := c.Info(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		n += info.NumAckPending
	}
	return n
}
