package importer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

var author = fixture.PersonOf(strings.Repeat("03", 32))

// event is one that is accepted only where what it names in its e tags is.
func event(kind int, content string, names ...*nostr.Event) *nostr.Event {
	at, tags := nostr.Timestamp(1000), nostr.Tags{}
	for _, named := range names {
		tags, at = append(tags, nostr.Tag{"e", named.ID}), max(at, named.CreatedAt+1)
	}
	return author.At(at).Sign(kind, content, tags...)
}

func file(events ...*nostr.Event) string {
	var b strings.Builder
	for _, ev := range events {
		b.WriteString(ev.String() + "\n")
	}
	return b.String()
}

// ingest stands for the service: it accepts an event if everything that it names is accepted, holds
// announcements and pull requests until their data is there, and refuses content "no" for good.
type ingest struct {
	accepted, held map[string]bool
	data           bool // what is held is released
	offered        int
	stop           func(offered int) error // what goes wrong; nil: nothing
}

func newIngest() *ingest { return &ingest{accepted: map[string]bool{}, held: map[string]bool{}} }

func (g *ingest) Offer(_ context.Context, c candidates.Candidate) error {
	g.offered++
	if g.stop != nil {
		if err := g.stop(g.offered); err != nil {
			return err
		}
	}
	var ev nostr.Event
	if err := json.Unmarshal(c.Raw, &ev); err != nil || c.Lane != proto.LaneImport || c.Source != proto.SourceImport {
		return fmt.Errorf("%s on %s from %s: %w", c.Raw, c.Lane, c.Source, err)
	}
	go c.Done(g.judge(&ev), nil)
	return nil
}

func (g *ingest) judge(ev *nostr.Event) proto.Verdict {
	orphan := false
	for tag := range ev.Tags.FindAll("e") {
		orphan = orphan || !g.accepted[tag[1]]
	}
	switch {
	case g.accepted[ev.ID]:
		return proto.Verdict{Outcome: proto.Duplicate, Message: "duplicate: here already"}
	case ev.Content == "no":
		return proto.Verdict{Outcome: proto.Rejected, Message: "blocked: no"}
	case orphan:
		return proto.Verdict{Outcome: proto.Rejected, Message: "invalid: an orphan", Retry: true}
	case g.held[ev.ID]:
		return proto.Verdict{Outcome: proto.Duplicate, Message: proto.MessagePurgatory}
	case (ev.Kind == 30617 || ev.Kind == 1618) && !g.data:
		g.held[ev.ID] = true
		return proto.Verdict{Outcome: proto.HeldBack, Message: proto.MessagePurgatory}
	}
	g.accepted[ev.ID] = true
	return proto.Verdict{Outcome: proto.Accepted}
}

// release accepts what is held.
func (g *ingest) release() {
	maps.Copy(g.accepted, g.held)
	clear(g.held)
}

// thread is an announcement, an issue of its repository and so many comments, each on the one
// before.
func thread(comments int) []*nostr.Event {
	announcement := event(30617, "")
	events := []*nostr.Event{announcement, event(1621, "", announcement)}
	for i := range comments {
		events = append(events, event(1111, fmt.Sprint(i), events[len(events)-1]))
	}
	return events
}

// run imports a text, and gives what it counts and writes of what is refused.
func run(t *testing.T, ctx context.Context, offer func(context.Context, candidates.Candidate) error, push func(context.Context, map[string]Pull) (bool, error), in io.Reader) (Counts, string, error) {
	t.Helper()
	m := &Import{Offer: offer, Push: push, Progress: func(string, int, int) {}}
	if err := m.Read(func(each func(Line)) error { return Lines(in, each) }); err != nil {
		return Counts{}, "", err
	}
	counts, err := m.Run(ctx)
	var refused bytes.Buffer
	if err := m.WriteRefused(&refused); err != nil {
		t.Error(err)
	}
	return counts, refused.String(), err
}

// TestAnyOrder: in whichever order the file is, everything that can be accepted is, and few are
// offered twice.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	events := thread(50)
	reversed, shuffled := slices.Clone(events), slices.Clone(events)
	slices.Reverse(reversed)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	orphan := event(1, "good morning", event(1, "it is not here"))
	for name, events := range map[string][]*nostr.Event{"oldest first": events, "newest first": reversed, "shuffled": shuffled} {
		g := newIngest()
		g.data = true
		counts, refused, err := run(t, t.Context(), g.Offer, nil, strings.NewReader(file(append(slices.Clone(events), orphan)...)))
		if want := (Counts{Lines: 53, Accepted: 52, Refused: 1}); err != nil || counts != want {
			t.Errorf("%s: %+v, %v, want %+v", name, counts, err, want)
		}
		if g.offered > 52+3 {
			t.Errorf("%s: %d offers", name, g.offered)
		}
		want := fmt.Sprintf(`{"line":53,"id":"%s","kind":1,"reason":"invalid: an orphan"}`+"\n", orphan.ID)
		if refused != want {
			t.Errorf("%s: refused are %q, want %q", name, refused, want)
		}
		// Once more: everything is known.
		counts, _, err = run(t, t.Context(), g.Offer, nil, strings.NewReader(file(events...)))
		if want := (Counts{Lines: 52, Known: 52}); err != nil || counts != want {
			t.Errorf("%s, again: %+v, %v, want %+v", name, counts, err, want)
		}
	}
}

// TestWhatIsNoEvent is refused with its line, and never offered.
func TestWhatIsNoEvent(t *testing.T) {
	t.Parallel()
	good := event(1, "good")
	spaced, _ := json.MarshalIndent(good, "", "")
	forged, renamed, blocked := *good, *good, event(1, "no")
	forged.Sig = strings.Repeat("0", 128)
	renamed.Content = "another"
	short := strings.Replace(good.String(), good.PubKey, "abc", 1)
	upper := strings.Replace(good.String(), good.Sig, strings.ToUpper(good.Sig), 1)
	lines := []string{
		"hello", forged.String(), renamed.String(), short, `{"kind":"x"}`, blocked.String(),
		`["EVENT",` + strings.ReplaceAll(string(spaced), "\n", " ") + "]", upper,
	}
	g := newIngest()
	counts, refused, err := run(t, t.Context(), g.Offer, nil, strings.NewReader(strings.Join(lines, "\n")))
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
		if !strings.Contains(refused, want) {
			t.Errorf("refused are\n%swhich lacks %s", refused, want)
		}
	}
	if _, _, err := run(t, t.Context(), g.Offer, nil, strings.NewReader("a\nb")); err == nil {
		t.Error("a file without events is imported")
	}
}

// TestGitDataIsPushedInBetween: what depends on a held announcement is accepted in the same run.
func TestGitDataIsPushedInBetween(t *testing.T) {
	t.Parallel()
	pull := author.At(1000).Sign(1618, "a pull request", nostr.Tag{"c", strings.Repeat("1", 40)}, author.Repo("mine"))
	events := file(append(thread(3), event(30618, ""), pull)...)
	if counts, _, err := run(t, t.Context(), newIngest().Offer, nil, strings.NewReader(events)); err != nil || counts != (Counts{Lines: 7, Accepted: 1, Held: 2, Refused: 4}) {
		t.Errorf("without git data: %+v, %v", counts, err)
	}
	g := newIngest()
	var pushed []map[string]Pull
	counts, _, err := run(t, t.Context(), g.Offer, func(_ context.Context, pulls map[string]Pull) (bool, error) {
		pushed = append(pushed, pulls)
		g.release()
		return false, nil
	}, strings.NewReader(events))
	if err != nil || counts != (Counts{Lines: 7, Accepted: 7}) || len(pushed) != 2 || pushed[0] != nil || pushed[1][pull.ID].Commit == "" {
		t.Errorf("%+v, %v, pushed %v", counts, err, pushed)
	}
}

// TestInterrupt: an import that is interrupted says what was not decided, and another one goes on.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	var events []*nostr.Event
	for i := range 3000 {
		events = append(events, event(1, fmt.Sprint(i)))
	}
	in := file(events...)
	for _, at := range []int{1, 700, 2999} {
		g := newIngest()
		ctx, cancel := context.WithCancel(t.Context())
		g.stop = func(offered int) error {
			if offered == at {
				cancel()
			}
			return nil
		}
		counts, _, err := run(t, ctx, g.Offer, nil, strings.NewReader(in))
		if !errors.Is(err, context.Canceled) || counts.Accepted < at || counts.Accepted+counts.Left != 3000 || counts.Accepted != len(g.accepted) {
			t.Errorf("interrupted at %d: %+v, %v, and %d are accepted", at, counts, err, len(g.accepted))
		}
		g.stop = nil
		again, _, err := run(t, t.Context(), g.Offer, nil, strings.NewReader(in))
		if want := (Counts{Lines: 3000, Accepted: 3000 - counts.Accepted, Known: counts.Accepted}); err != nil || again != want {
			t.Errorf("again after %d: %+v, %v, want %+v", at, again, err, want)
		}
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	in := file(event(1, "a"), event(1, "b"))
	ends := newIngest()
	ends.stop = func(offered int) error {
		if offered == 2 {
			return candidates.ErrEnded
		}
		return nil
	}
	broken := errors.New("broken")
	answer := func(err error) func(context.Context, candidates.Candidate) error {
		return func(_ context.Context, c candidates.Candidate) error { c.Done(proto.Verdict{}, err); return nil }
	}
	for name, c := range map[string]struct {
		offer func(context.Context, candidates.Candidate) error
		in    io.Reader
		want  Counts
		err   error
	}{
		"no one decides any more":       {ends.Offer, strings.NewReader(in), Counts{Lines: 2, Accepted: 1, Left: 1}, candidates.ErrEnded},
		"a file that cannot be read":    {newIngest().Offer, io.MultiReader(strings.NewReader(in), iotest.ErrReader(broken)), Counts{}, broken},
		"events that NATS cannot carry": {answer(fmt.Errorf("send: %w", nats.ErrMaxPayload)), strings.NewReader(in), Counts{Lines: 2, Refused: 2}, nil},
		"no verdicts":                   {answer(candidates.ErrNoVerdict), strings.NewReader(in), Counts{Lines: 2, Left: 2}, candidates.ErrNoVerdict},
	} {
		if got, _, err := run(t, t.Context(), c.offer, nil, c.in); !errors.Is(err, c.err) || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v, %v", name, got, err, c.want, c.err)
		}
	}
}
