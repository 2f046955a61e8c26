package importer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const key = "0000000000000000000000000000000000000000000000000000000000000003"

// event signs an event that is accepted only where what it names in its e tags is.
func event(t testing.TB, kind int, content string, names ...*nostr.Event) *nostr.Event {
	t.Helper()
	ev := &nostr.Event{Kind: kind, CreatedAt: 1000, Content: content, Tags: nostr.Tags{}}
	for _, named := range names {
		ev.Tags = append(ev.Tags, nostr.Tag{"e", named.ID})
	}
	if err := ev.Sign(key); err != nil {
		t.Fatal(err)
	}
	return ev
}

func file(events ...*nostr.Event) string {
	var b strings.Builder
	for _, ev := range events {
		b.WriteString(ev.String() + "\n")
	}
	return b.String()
}

// ingest stands for the service: it accepts an event if everything that it names is accepted, holds
// announcements until their data is there, and refuses content "no" for good.
type ingest struct {
	mu       sync.Mutex
	accepted map[string]bool
	held     map[string]bool
	data     bool // held announcements are released
	offered  int
	stop     func(offered int) error // what goes wrong; nil: nothing
	verdicts chan func()             // on their way, in order
}

func newIngest(t testing.TB) *ingest {
	g := &ingest{accepted: map[string]bool{}, held: map[string]bool{}, verdicts: make(chan func(), 100)}
	go func() {
		for tell := range g.verdicts {
			tell()
		}
	}()
	t.Cleanup(func() { close(g.verdicts) })
	return g
}

func (g *ingest) Offer(ctx context.Context, c candidates.Candidate) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.offered++
	if g.stop != nil {
		if err := g.stop(g.offered); err != nil {
			return err
		}
	}
	var ev nostr.Event
	if err := json.Unmarshal(c.Raw, &ev); err != nil || c.Lane != proto.LaneSyncHistoric || c.Source != proto.SourceImport {
		return fmt.Errorf("%s on %s from %s: %w", c.Raw, c.Lane, c.Source, err)
	}
	v := g.judge(&ev)
	v.ID = ev.ID
	g.verdicts <- func() { c.Done(v, nil) }
	return nil
}

func (g *ingest) judge(ev *nostr.Event) proto.Verdict {
	switch {
	case g.accepted[ev.ID]:
		return proto.Verdict{Outcome: proto.Duplicate, Message: "duplicate: here already"}
	case ev.Content == "no":
		return proto.Verdict{Outcome: proto.Rejected, Message: "blocked: no"}
	}
	for tag := range ev.Tags.FindAll("e") {
		if !g.accepted[tag[1]] {
			return proto.Verdict{Outcome: proto.Rejected, Message: "invalid: an orphan", Retry: true}
		}
	}
	if (ev.Kind == 30617 || ev.Kind == 1618) && !g.data {
		if g.held[ev.ID] {
			return proto.Verdict{Outcome: proto.Duplicate, Message: proto.MessagePurgatory}
		}
		g.held[ev.ID] = true
		return proto.Verdict{Outcome: proto.HeldBack, Message: proto.MessagePurgatory}
	}
	g.accepted[ev.ID] = true
	return proto.Verdict{Outcome: proto.Accepted}
}

// release accepts what is held.
func (g *ingest) release() (released int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.data = true
	for id := range g.held {
		g.accepted[id] = true
		delete(g.held, id)
		released++
	}
	return released
}

// thread is an announcement, an issue of its repository and a chain of so many comments.
func thread(t testing.TB, comments int) []*nostr.Event {
	announcement := event(t, 30617, "")
	events := []*nostr.Event{announcement, event(t, 1621, "", announcement)}
	for i := range comments {
		events = append(events, event(t, 1111, fmt.Sprint(i), events[len(events)-1]))
	}
	return events
}

// TestAnyOrder: whatever order the file is in, everything that can be accepted is; the number of
// offers stays small where the order is one way or the other.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	events := thread(t, 50)
	reversed := slices.Clone(events)
	slices.Reverse(reversed)
	shuffled := slices.Clone(events)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	orphan := event(t, 1, "good morning", event(t, 1, "nobody knows it"))
	for _, c := range []struct {
		name   string
		events []*nostr.Event
		offers int // most
	}{
		{"oldest first", events, 52 + 3}, {"newest first", reversed, 52 + 52 + 3}, {"shuffled", shuffled, 52 * 52},
	} {
		g := newIngest(t)
		g.data = true
		var refused bytes.Buffer
		m := Import{Offerer: g, Temp: t.TempDir(), Refused: &refused}
		counts, err := m.Run(t.Context(), strings.NewReader(file(append(slices.Clone(c.events), orphan)...)))
		if want := (Counts{Lines: 53, Accepted: 52, Refused: 1}); err != nil || counts != want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, counts, err, want)
		}
		if g.offered > c.offers {
			t.Errorf("%s: %d offers, want %d at most", c.name, g.offered, c.offers)
		}
		want := fmt.Sprintf(`{"line":53,"id":"%s","kind":1,"reason":"invalid: an orphan"}`+"\n", orphan.ID)
		if refused.String() != want {
			t.Errorf("%s: refused are %q, want %q", c.name, &refused, want)
		}
		// Once more: everything is known.
		m = Import{Offerer: g, Temp: t.TempDir()}
		counts, err = m.Run(t.Context(), strings.NewReader(file(c.events...)))
		if want := (Counts{Lines: 52, Known: 52}); err != nil || counts != want {
			t.Errorf("%s, again: %+v, %v, want %+v", c.name, counts, err, want)
		}
	}
}

// TestWhatIsNoEvent is refused with its line, and never offered.
func TestWhatIsNoEvent(t *testing.T) {
	t.Parallel()
	good := event(t, 1, "good")
	spaced, _ := json.MarshalIndent(good, "", "")
	forged, renamed, blocked := *good, *good, event(t, 1, "no")
	forged.Sig = strings.Repeat("0", 128)
	renamed.Content = "another"
	short := strings.Replace(good.String(), good.PubKey, "abc", 1)
	upper := strings.Replace(good.String(), good.Sig, strings.ToUpper(good.Sig), 1)
	lines := []string{
		"hello", forged.String(), renamed.String(), short, `{"kind":"x"}`, blocked.String(),
		`["EVENT",` + strings.ReplaceAll(string(spaced), "\n", " ") + "]", upper,
	}
	g := newIngest(t)
	var refused bytes.Buffer
	m := Import{Offerer: g, Temp: t.TempDir(), Refused: &refused}
	counts, err := m.Run(t.Context(), strings.NewReader(strings.Join(lines, "\n")))
	if want := (Counts{Lines: 8, Accepted: 1, Refused: 7, Invalid: 6}); err != nil || counts != want {
		t.Errorf("%+v, %v, want %+v", counts, err, want)
	}
	if g.offered != 2 || !g.accepted[good.ID] {
		t.Errorf("%d were offered", g.offered)
	}
	for _, want := range []string{
		`{"line":1,"kind":0,"reason":"invalid: want the JSON of an event, or [\"EVENT\",{…}]"}`, `"line":2,"id":"` + good.ID + `","kind":1,"reason":"invalid: the signature is wrong"`,
		`"line":3,"id":"` + good.ID + `","kind":1,"reason":"invalid: the id is not that of the event"`, `"line":4,`, `"line":5,"kind":0,"reason":"invalid: not an event:`,
		`"line":6,"id":"` + blocked.ID + `","kind":1,"reason":"blocked: no"`,
		`"line":8,"id":"` + good.ID + `","kind":1,"reason":"invalid: not an event: its id, public key or signature is not lower-case hex`,
	} {
		if !strings.Contains(refused.String(), want) {
			t.Errorf("refused are\n%swhich lacks %s", &refused, want)
		}
	}
}

// gitData releases what is held when it is pushed.
type gitData struct {
	*ingest
	id     string // of a pull request
	states []*nostr.State
	pull   bool
}

func (d *gitData) PushStates(_ context.Context, states func(string) ([]*nostr.State, error)) (int, error) {
	list, err := states("x")
	d.states = list
	return d.release(), err
}

func (d *gitData) PushPulls(_ context.Context, has func(string) bool) (int, error) {
	d.pull = has(d.id) && !has("none")
	return 0, nil
}

// TestGitDataIsPushedInBetween: what depends on a held announcement is accepted in the same run.
func TestGitDataIsPushedInBetween(t *testing.T) {
	t.Parallel()
	events := thread(t, 3)
	g := newIngest(t)
	m := Import{Offerer: g, Temp: t.TempDir()}
	counts, err := m.Run(t.Context(), strings.NewReader(file(events...)))
	if want := (Counts{Lines: 5, Held: 1, Refused: 4}); err != nil || counts != want {
		t.Errorf("without git data: %+v, %v, want %+v", counts, err, want)
	}
	d := &gitData{ingest: g, id: event(t, 1618, "a pull request").ID}
	m = Import{Offerer: g, Temp: t.TempDir(), Repositories: d}
	g.offered = 0
	older, newer := event(t, 30618, "older"), event(t, 30618, "newer")
	for at, ev := range []*nostr.Event{older, newer} {
		ev.CreatedAt, ev.Tags = nostr.Timestamp(1000+at), nostr.Tags{{"d", "x"}}
		if err := ev.Sign(key); err != nil {
			t.Fatal(err)
		}
	}
	events = append(events, newer, older, event(t, 1618, "a pull request"))
	counts, err = m.Run(t.Context(), strings.NewReader(file(events...)))
	if want := (Counts{Lines: 8, Accepted: 8}); err != nil || counts != want {
		t.Errorf("with it: %+v, %v, want %+v", counts, err, want)
	}
	if len(d.states) != 1 || d.states[0].Event.ID != newer.ID || !d.pull || g.offered > 10 {
		t.Errorf("%+v, %d offered", d, g.offered)
	}
}

// TestWaitingForGitData: with Wait what is released meanwhile lets the others in.
func TestWaitingForGitData(t *testing.T) {
	t.Parallel()
	events := thread(t, 3)
	g := newIngest(t)
	g.stop = func(offered int) error {
		if offered == 12 { // the announcement is offered a few times before
			go g.release()
		}
		return nil
	}
	m := Import{Offerer: g, Temp: t.TempDir(), Wait: time.Minute, Again: time.Millisecond}
	counts, err := m.Run(t.Context(), strings.NewReader(file(events...)))
	if want := (Counts{Lines: 5, Accepted: 5}); err != nil || counts != want {
		t.Errorf("%+v, %v, want %+v", counts, err, want)
	}
}

// TestInterrupt: an import that is interrupted says what was not decided, and another one goes on.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	var events []*nostr.Event
	for i := range 3000 {
		events = append(events, event(t, 1, fmt.Sprint(i)))
	}
	in := file(events...)
	for _, at := range []int{1, 700, 2999} {
		g := newIngest(t)
		ctx, cancel := context.WithCancel(t.Context())
		g.stop = func(offered int) error {
			if offered == at {
				cancel()
			}
			return nil
		}
		m := Import{Offerer: g, Temp: t.TempDir()}
		counts, err := m.Run(ctx, strings.NewReader(in))
		if !errors.Is(err, context.Canceled) || counts.Accepted < at || counts.Accepted+counts.Left != 3000 || counts.Accepted != len(g.accepted) {
			t.Errorf("interrupted at %d: %+v, %v, and %d are accepted", at, counts, err, len(g.accepted))
		}
		g.stop = nil
		m = Import{Offerer: g, Temp: t.TempDir()}
		again, err := m.Run(t.Context(), strings.NewReader(in))
		if want := (Counts{Lines: 3000, Accepted: 3000 - counts.Accepted, Known: counts.Accepted}); err != nil || again != want {
			t.Errorf("again after %d: %+v, %v, want %+v", at, again, err, want)
		}
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	in := file(event(t, 1, "a"), event(t, 1, "b"))
	g := newIngest(t)
	g.stop = func(offered int) error {
		if offered == 2 {
			return candidates.ErrEnded
		}
		return nil
	}
	counts, err := (&Import{Offerer: g, Temp: t.TempDir()}).Run(t.Context(), strings.NewReader(in))
	if !errors.Is(err, candidates.ErrEnded) || counts.Accepted != 1 || counts.Left != 1 {
		t.Errorf("nobody decides any more: %+v, %v", counts, err)
	}
	broken := errors.New("broken")
	in2 := io.MultiReader(strings.NewReader(in), &failing{broken})
	if _, err := (&Import{Offerer: newIngest(t), Temp: t.TempDir()}).Run(t.Context(), in2); !errors.Is(err, broken) {
		t.Errorf("a file that cannot be read: %v", err)
	}
	if _, err := (&Import{Offerer: newIngest(t), Temp: "/nowhere"}).Run(t.Context(), strings.NewReader(in)); err == nil {
		t.Error("no room for temporary files is no error")
	}
	large := answer{err: fmt.Errorf("send: %w", nats.ErrMaxPayload)}
	if counts, err := (&Import{Offerer: large, Temp: t.TempDir()}).Run(t.Context(), strings.NewReader(in)); err != nil || counts.Refused != 2 {
		t.Errorf("events that NATS does not take: %+v, %v", counts, err)
	}
	none := answer{err: candidates.ErrNoVerdict}
	if counts, err := (&Import{Offerer: none, Temp: t.TempDir()}).Run(t.Context(), strings.NewReader(in)); !errors.Is(err, candidates.ErrNoVerdict) || counts.Left != 2 {
		t.Errorf("no verdicts: %+v, %v", counts, err)
	}
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

// answer ends every candidate with an error.
type answer struct{ err error }

func (a answer) Offer(_ context.Context, c candidates.Candidate) error {
	c.Done(proto.Verdict{}, a.err)
	return nil
}

// BenchmarkImport is what an event costs on this side of the bus: it is read, written down, read
// again, checked and offered.
func BenchmarkImport(b *testing.B) {
	var in strings.Builder
	for i := range b.N {
		in.WriteString(event(b, 1111, fmt.Sprint("some text of an event ", i)).String() + "\n")
	}
	b.ReportAllocs()
	b.ResetTimer()
	m := Import{Offerer: yes{}, Temp: b.TempDir()}
	if counts, err := m.Run(b.Context(), strings.NewReader(in.String())); err != nil || counts.Accepted != b.N {
		b.Fatal(counts, err)
	}
}

// yes accepts everything at once.
type yes struct{}

func (yes) Offer(_ context.Context, c candidates.Candidate) error {
	c.Done(proto.Verdict{Outcome: proto.Accepted}, nil)
	return nil
}
