package indexcopy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nbd-wtf/go-nostr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/eventdb"
	"tendril.dev/proto"
)

// TestCopy: with logins and permissions, a second process has what the first has, goes on from
// there, and can give copies itself. Nothing is left of the copying.
func TestCopy(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(1500)
	for _, c := range []struct{ from, to string }{
		{proto.UserGateway, proto.UserGateway}, {proto.UserIngest, proto.UserIngest},
	} {
		from, to := p.peer(c.from).read(), p.peer(c.to)
		stop := from.gives(from.giver())
		taker := to.taker()
		var err error
		if taker.Metrics, err = NewMetrics(prometheus.NewRegistry()); err != nil {
			t.Fatal(err)
		}
		if taken, err := taker.Take(t.Context()); !taken || err != nil {
			t.Fatalf("%s from %s: %t, %v", c.to, c.from, taken, err)
		}
		if n := testutil.ToFloat64(taker.Metrics.bytes.WithLabelValues(wayTaken)); n < 3*proto.IndexChunk {
			t.Errorf("%v bytes taken: too few for the test to mean anything", n)
		}
		if n := testutil.ToFloat64(taker.Metrics.copies.WithLabelValues(wayTaken, "done")); n != 1 {
			t.Errorf("%v copies counted", n)
		}
		stop()
		same(t, from.Index, to.Index)
		nothingLeft(t, from.dir)
		nothingLeft(t, to.dir)
		p.write(100)
		same(t, from.read().Index, to.read().Index)
		again := p.peer(c.to)
		stop = to.gives(to.giver())
		if taken, err := again.taker().Take(t.Context()); !taken || err != nil {
			t.Errorf("a copy of the copy: %t, %v", taken, err)
		}
		same(t, from.Index, again.Index)
		stop()
	}
}

// TestOwnIndexFirst: whoever lacks little takes no copy, nor does whoever nobody can give one.
func TestOwnIndexFirst(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(1000)
	alone := p.peer(proto.UserGateway)
	if taken, err := alone.taker().Take(t.Context()); taken || err != nil {
		t.Errorf("nobody is there: %t, %v", taken, err)
	}
	// Somebody is there, who has nothing either.
	empty := p.peer(proto.UserGateway)
	defer empty.gives(empty.giver())()
	if taken, err := alone.taker().Take(t.Context()); taken || err != nil {
		t.Errorf("an empty one is there: %t, %v", taken, err)
	}
	own := p.peer(proto.UserGateway).read()
	p.write(9)
	ahead := p.peer(proto.UserIngest).read()
	defer ahead.gives(ahead.giver())()
	taker := own.taker()
	if taken, err := taker.Take(t.Context()); taken || err != nil {
		t.Errorf("little is missing: %t, %v", taken, err)
	}
	p.write(1)
	ahead.read()
	if taken, err := taker.Take(t.Context()); !taken || err != nil {
		t.Errorf("enough is missing: %t, %v", taken, err)
	}
	same(t, ahead.Index, own.Index)
}

// TestGivesWhileItServes: while a copy is given, the giver applies the log and answers queries. The
// copy holds some state of it, whole, and reads the rest.
func TestGivesWhileItServes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(3000)
	from, to := p.peer(proto.UserGateway).read(), p.peer(proto.UserGateway)
	giver := from.giver()
	giver.Rate = 2 << 20
	from.gives(giver)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var working sync.WaitGroup
	working.Go(func() {
		if err := eventdb.Follow(ctx, from.JS, from.Index, quiet); err != nil {
			t.Error(err)
		}
	})
	answers := 0
	working.Go(func() {
		for ; ctx.Err() == nil; answers++ {
			v := from.Index.View()
			n := 0
			for _, err := range v.Query(t.Context(), nostr.Filter{Kinds: []int{1}, Limit: 500}) {
				if err != nil {
					t.Error(err)
				}
				n++
			}
			if err := v.Close(); err != nil || n != 500 {
				t.Errorf("%d events, %v", n, err)
			}
		}
	})
	writing := make(chan struct{})
	working.Go(func() {
		defer close(writing)
		for range 10 {
			p.write(100)
		}
	})
	taken, err := to.taker().Take(t.Context())
	<-writing
	stop()
	working.Wait()
	if !taken || err != nil {
		t.Fatalf("%t, %v", taken, err)
	}
	if seq := to.Index.Seq(); seq < 3000 || answers == 0 {
		t.Errorf("at %d, after %d answers", seq, answers)
	}
	same(t, from.read().Index, to.read().Index)
}

// TestGiverDies in the middle of a copy: another gives it, and where there is none the index is as
// it was.
func TestGiverDies(t *testing.T) {
	t.Parallel()
	for how, more := range map[string]bool{"it stops": false, "it is killed": true} {
		t.Run(fmt.Sprintf("%s, more are there %t", how, more), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.write(50)
			to := p.peer(proto.UserGateway).read()
			p.write(1500)
			from, other := p.peer(proto.UserGateway).read(), p.peer(proto.UserIngest).read()
			var asked atomic.Int64
			var dying sync.Once
			dies := make(chan struct{})
			stop := from.serves(meddler{read: func(_ proto.IndexRead, chunk []byte) ([]byte, error) {
				if asked.Add(1) < 3 {
					return chunk, nil
				}
				dying.Do(func() {
					if how == "it is killed" {
						from.Conn.Close()
					}
					close(dies)
				})
				return nil, errGone
			}}.serve(from.giver()), proto.UserGateway)
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				select {
				case <-dies:
					stop()
				case <-t.Context().Done():
				}
			}()
			if more {
				// It does not answer before that: the first copy is the one of the giver that dies,
				// however late that one's offer comes.
				var waits atomic.Bool
				other.serves(meddler{offer: func(*proto.IndexOffer) {
					if waits.Load() {
						select {
						case <-dies:
						case <-t.Context().Done():
						}
					}
				}}.serve(other.giver()), proto.UserIngest)
				waits.Store(true)
			}
			taken, err := to.taker().Take(t.Context())
			select {
			case <-dies:
				<-gone
			default:
				t.Error("nothing was asked for")
			}
			if taken != more || err != nil {
				t.Fatalf("taken %t, %v", taken, err)
			}
			if !more && to.Index.Seq() != 50 {
				t.Errorf("at %d, want the 50 that it had", to.Index.Seq())
			}
			nothingLeft(t, to.dir)
			same(t, other.Index, to.read().Index)
		})
	}
}

// TestDamagedChunk: a chunk that comes damaged is asked for again; one that always does ends the
// copy.
func TestDamagedChunk(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(1500)
	from := p.peer(proto.UserGateway).read()
	for name, c := range map[string]struct {
		damage func(chunk []byte) []byte
		times  int64
		taken  bool
	}{
		"a bit, once":   {func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, 1, true},
		"a bit, always": {func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, 1 << 40, false},
		"cut short":     {func(b []byte) []byte { return sealed(b[:len(b)-1]) }, 1 << 40, false},
		"too long":      {func(b []byte) []byte { return sealed(append(b, 'x')) }, 1 << 40, false},
		"empty":         {func([]byte) []byte { return nil }, 1 << 40, false},
	} {
		t.Run(name, func(t *testing.T) {
			to := p.peer(proto.UserGateway)
			var damaged atomic.Int64
			defer from.serves(meddler{read: func(r proto.IndexRead, chunk []byte) ([]byte, error) {
				if r.Chunk == 1 && damaged.Add(1) <= c.times {
					return c.damage(chunk), nil
				}
				return chunk, nil
			}}.serve(from.giver()), proto.UserGateway)()
			taken, err := to.taker().Take(t.Context())
			if taken != c.taken || err != nil {
				t.Errorf("taken %t, %v", taken, err)
			}
			if damaged.Load() == 0 {
				t.Error("nothing was damaged")
			}
			nothingLeft(t, to.dir)
			same(t, from.Index, to.read().Index)
		})
	}
}

// TestRefusedCopies: what is not of this log, ahead of it, or no index is not taken, and nothing is
// written outside the index's folder.
func TestRefusedCopies(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(500)
	from := p.peer(proto.UserGateway).read()
	for name, m := range map[string]meddler{
		"an offer of another log":    {offer: func(o *proto.IndexOffer) { o.Log = strings.Replace(o.Log, "20", "19", 1) }},
		"an offer of another format": {offer: func(o *proto.IndexOffer) { o.Format++ }},
		"no subject":                 {offer: func(o *proto.IndexOffer) { o.Replica = "a.>" }},
		"less than was offered":      {copy: func(c *proto.IndexCopy) { c.Seq-- }},
		"more than was read":         {offer: func(o *proto.IndexOffer) { o.Seq++ }, copy: func(c *proto.IndexCopy) { c.Seq++ }},
		"a path":                     {copy: func(c *proto.IndexCopy) { c.Files[0].Name = "../" + c.Files[0].Name }},
		"too much in all":            {copy: func(c *proto.IndexCopy) { c.Files[0].Bytes, c.Files[1].Bytes = 1<<62, 1<<62 }},
		"a table is left out": {copy: func(c *proto.IndexCopy) {
			for i, f := range c.Files {
				if strings.HasSuffix(f.Name, ".sst") {
					c.Files = append(c.Files[:i:i], c.Files[i+1:]...)
					return
				}
			}
		}},
		"a file shorter than said": {copy: func(c *proto.IndexCopy) { c.Files[0].Bytes += proto.IndexChunk }},
		"gone at once":             {read: func(proto.IndexRead, []byte) ([]byte, error) { return nil, errGone }},
	} {
		t.Run(name, func(t *testing.T) {
			to := p.peer(proto.UserGateway)
			defer from.serves(m.serve(from.giver()), proto.UserGateway)()
			taken, err := to.taker().Take(t.Context())
			if taken || err != nil {
				t.Errorf("taken %t, %v", taken, err)
			}
			nothingLeft(t, to.dir)
			same(t, from.Index, to.read().Index)
		})
	}
}

// TestAheadOfTheLog: an index that has read more than the log holds is of another past.
func TestAheadOfTheLog(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(500)
	from, to := p.peer(proto.UserGateway).read(), p.peer(proto.UserGateway)
	if err := from.Index.Advance(501); err != nil {
		t.Fatal(err)
	}
	from.gives(from.giver())
	if taken, err := to.taker().Take(t.Context()); taken || err != nil {
		t.Errorf("taken %t, %v", taken, err)
	}
	nothingLeft(t, to.dir)
	if seq := to.Index.Seq(); seq != 0 {
		t.Errorf("at %d", seq)
	}
	if to.read(); len(all(t, to.Index)) != 500 {
		t.Error("the log does not make up for it")
	}
}

func TestNoRoom(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(500)
	from, to := p.peer(proto.UserGateway).read(), p.peer(proto.UserGateway)
	from.gives(from.giver())
	taker := to.taker()
	taker.free = func() (uint64, error) { return spare, nil }
	if taken, err := taker.Take(t.Context()); taken || err != nil {
		t.Errorf("taken %t, %v", taken, err)
	}
	nothingLeft(t, to.dir)
	nothingLeft(t, from.dir)
	taker.free = nil
	if taken, err := taker.Take(t.Context()); !taken || err != nil {
		t.Errorf("with room: taken %t, %v", taken, err)
	}
}

// TestNATSIsAway: when the bus goes in the middle of it, the process starts all the same.
func TestNATSIsAway(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(20)
	to := p.peer(proto.UserGateway).read()
	p.write(1500)
	from := p.peer(proto.UserGateway).read()
	from.serves(meddler{read: func(_ proto.IndexRead, chunk []byte) ([]byte, error) {
		to.Conn.Close()
		return chunk, nil
	}}.serve(from.giver()), proto.UserGateway)
	if taken, err := to.taker().Take(t.Context()); taken || err != nil {
		t.Errorf("taken %t, %v", taken, err)
	}
	nothingLeft(t, to.dir)
	if to.Index.Seq() != 20 {
		t.Errorf("at %d", to.Index.Seq())
	}
}

// TestStopped: a process that is asked to stop while it takes a copy stops, and has its own index.
func TestStopped(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(20)
	to := p.peer(proto.UserGateway).read()
	p.write(1500)
	from := p.peer(proto.UserGateway).read()
	ctx, cancel := context.WithCancel(t.Context())
	from.serves(meddler{read: func(_ proto.IndexRead, chunk []byte) ([]byte, error) {
		cancel()
		return chunk, nil
	}}.serve(from.giver()), proto.UserGateway)
	if taken, err := to.taker().Take(ctx); taken || !errors.Is(err, context.Canceled) {
		t.Errorf("taken %t, %v", taken, err)
	}
	nothingLeft(t, to.dir)
	if to.Index.Seq() != 20 {
		t.Errorf("at %d", to.Index.Seq())
	}
}
