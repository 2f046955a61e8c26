package roots_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/roots"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

const ref = "30617:aa:x"

func openBus(t *testing.T) *bus.Bus {
	t.Helper()
	sizing := proto.DefaultSizing()
	sizing.MemoryOnly = true
	b, err := bus.Open(t.Context(), bus.Options{Sizing: sizing, Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func ids(from, to int) (list []target.ID) {
	for n := from; n < to; n++ {
		var id target.ID
		binary.BigEndian.PutUint64(id[:], uint64(n))
		list = append(list, id)
	}
	return list
}

// write appends changes to the list as discovery does, and returns the sequence of the last.
func write(t *testing.T, b *bus.Bus, last uint64, changes ...proto.RootsChange) uint64 {
	t.Helper()
	subject, err := proto.RootsSubject(ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		msg := &nats.Msg{Subject: subject, Header: nats.Header{}}
		if c.Snapshot || c.Gone {
			msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
		} else {
			c.Prev = last
		}
		if msg.Data, err = json.Marshal(c); err != nil {
			t.Fatal(err)
		}
		ack, err := b.JS.PublishMsg(t.Context(), msg)
		if err != nil {
			t.Fatal(err)
		}
		last = ack.Sequence
	}
	return last
}

// is fails the test unless the reader returns that list.
func is(t *testing.T, r *roots.Reader, at uint64, want []target.ID) {
	t.Helper()
	if got, whole, err := r.At(t.Context(), ref, at); err != nil || !whole || !slices.Equal(got, want) {
		t.Errorf("at %d: %d ids, %v, %v; want %d", at, len(got), whole, err, len(want))
	}
}

func TestReader(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	first := write(t, b, 0, target.ListDiff(ref, nil, ids(0, 50), 512<<10)...)
	second := write(t, b, first, target.ListDiff(ref, ids(0, 50), ids(10, 300), 4096)...)
	r := roots.NewReader(b.JS)
	is(t, r, second, ids(10, 300))
	is(t, r, first, ids(0, 50)) // though a later one is known
	if got, settled, err := r.Newest(t.Context(), ref); err != nil || !settled || len(got) != 290 {
		t.Errorf("the newest: %d ids, %v, %v", len(got), settled, err)
	}
	parts := target.ListSnapshot(ref, ids(5, 400), 4096)
	if len(parts) < 3 {
		t.Fatalf("%d parts: the test needs more", len(parts))
	}
	last := write(t, b, second, parts[:2]...)
	if got, settled, err := r.Newest(t.Context(), ref); err != nil || settled {
		t.Errorf("while it is written: %d ids, %v, %v", len(got), settled, err)
	}
	other := roots.NewReader(b.JS)
	if got, whole, err := other.At(t.Context(), ref, second); err != nil || whole {
		t.Errorf("what was replaced: %d ids, %v, %v", len(got), whole, err)
	}
	last = write(t, b, last, parts[2:]...)
	is(t, other, last, ids(5, 400))
	gone := write(t, b, last, proto.RootsChange{Ref: ref, Gone: true})
	if got, whole, err := other.At(t.Context(), ref, gone); err != nil || whole {
		t.Errorf("withdrawn: %d ids, %v, %v", len(got), whole, err)
	}
	if got, settled, err := other.Newest(t.Context(), ref); err != nil || !settled || len(got) > 0 {
		t.Errorf("the newest when it is withdrawn: %d ids, %v, %v", len(got), settled, err)
	}
	for _, none := range []string{"30617:aa:none", "", "no reference"} {
		if got, settled, err := other.Newest(t.Context(), none); err != nil || !settled || len(got) > 0 {
			t.Errorf("the newest of %q: %d ids, %v, %v", none, len(got), settled, err)
		}
		if got, whole, err := other.At(t.Context(), none, last); err != nil || whole {
			t.Errorf("a message of another repository is taken for one of %q: %d ids, %v", none, len(got), err)
		}
	}
}

// TestOneListForAll: whoever asks for the same list gets the same one, and it is let go of when
// nobody has it.
func TestOneListForAll(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	at := write(t, b, 0, target.ListDiff(ref, nil, ids(0, 500), 512<<10)...)
	r := roots.NewReader(b.JS)
	var lists [20][]target.ID
	var all sync.WaitGroup
	for i := range lists {
		all.Go(func() {
			list, _, err := r.At(t.Context(), ref, at)
			if err != nil {
				t.Error(err)
			}
			lists[i] = list
		})
	}
	all.Wait()
	for i := range lists {
		if len(lists[i]) != 500 || &lists[i][0] != &lists[0][0] {
			t.Fatalf("list %d has %d ids, and is another one", i, len(lists[i]))
		}
	}
	runtime.KeepAlive(lists)
	for n := range 10_000 {
		if r.Keep(fmt.Sprint("30617:aa:", n), 1, ids(n, n+40)); n%1000 == 0 {
			runtime.GC()
		}
	}
	if n := r.Remembered(); n > 5000 {
		t.Errorf("%d lists are remembered that nobody has", n)
	}
	is(t, r, at, ids(0, 500)) // read again
}
