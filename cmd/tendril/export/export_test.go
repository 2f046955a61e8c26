package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const key = "0000000000000000000000000000000000000000000000000000000000000003"

func event(t testing.TB, kind int, at nostr.Timestamp, content string, tags ...nostr.Tag) *nostr.Event {
	t.Helper()
	ev := &nostr.Event{Kind: kind, CreatedAt: at, Content: content, Tags: tags}
	if err := ev.Sign(key); err != nil {
		t.Fatal(err)
	}
	return ev
}

func openBus(t testing.TB) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// store writes events into the log as ingest does.
func store(t testing.TB, b *bus.Bus, raws ...string) {
	t.Helper()
	for some := range slices.Chunk(raws, 500) {
		var msgs []*nats.Msg
		for _, raw := range some {
			var ev nostr.Event
			if err := json.Unmarshal([]byte(raw), &ev); err != nil {
				t.Fatal(err)
			}
			msgs = append(msgs, &nats.Msg{Subject: proto.EventSubjectOf(&ev).String(), Data: []byte(raw)})
		}
		if _, err := b.PublishBatch(t.Context(), msgs, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func untold(int, int) {}

func logOf(t testing.TB, b *bus.Bus, told func(done, of int)) (raws []string) {
	t.Helper()
	n, err := Log(t.Context(), b.JS, told, func(raw []byte) error {
		raws = append(raws, string(raw))
		return nil
	})
	if err != nil || n != len(raws) {
		t.Fatalf("%d events, %v", n, err)
	}
	return raws
}

// TestLog: all events, oldest first, as they are stored, and nothing else.
func TestLog(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	if got := logOf(t, b, untold); len(got) != 0 {
		t.Fatalf("an empty log has %q", got)
	}
	var want []string
	for i := range 2500 { // more than is asked for at once
		raw := event(t, 1621, 1000, fmt.Sprint("é < & ", i)).String()
		if i%2 == 0 {
			raw = strings.Replace(raw, `"kind":1621`, `"kind": 1621`, 1) // stored as it came
		}
		want = append(want, raw)
	}
	older, newer := event(t, 30617, 1000, "older", nostr.Tag{"d", "a"}), event(t, 30617, 2000, "newer", nostr.Tag{"d", "a"})
	store(t, b, older.String())
	store(t, b, want...)
	store(t, b, newer.String()) // in the place of the older one
	if _, err := b.PublishBatch(t.Context(), []*nats.Msg{{Subject: proto.SubjectEventsMark, Data: []byte(`{"writer":"x"}`)}}, nil); err != nil {
		t.Fatal(err)
	}
	gone := event(t, 1621, 1000, "it has left the log")
	store(t, b, gone.String())
	removal := &nats.Msg{Subject: proto.EventSubjectOf(gone).String(), Header: nats.Header{proto.HeaderRemoved: {gone.ID}}}
	if _, err := b.PublishBatch(t.Context(), []*nats.Msg{removal}, nil); err != nil {
		t.Fatal(err)
	}
	want = append(want, newer.String())
	last := -1
	got := logOf(t, b, func(done, of int) {
		if done <= last || of < done {
			t.Errorf("%d of %d after %d", done, of, last)
		}
		last = done
	})
	if !slices.Equal(got, want) {
		t.Errorf("%d events, want %d, or others", len(got), len(want))
	}
	full := errors.New("disk full")
	if _, err := Log(t.Context(), b.JS, untold, func([]byte) error { return full }); !errors.Is(err, full) {
		t.Errorf("where they cannot be written: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Log(ctx, b.JS, untold, func([]byte) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestNothingIsLostMeanwhile: an event whose place a newer one takes while the log is read is there
// in one version at least.
func TestNothingIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	const many = 3000
	var raws []string
	for i := range many {
		raws = append(raws, event(t, 30617, 1000, "", nostr.Tag{"d", fmt.Sprint(i)}).String())
	}
	store(t, b, raws...)
	replaced := 0
	seen := map[string]bool{}
	_, err := Log(t.Context(), b.JS, untold, func(raw []byte) error {
		var ev nostr.Event
		if err := json.Unmarshal(raw, &ev); err != nil {
			return err
		}
		seen[ev.Tags.GetD()] = true
		if replaced < 50 { // those at the end, which were not read yet
			replaced++
			store(t, b, event(t, 30617, 2000, "", nostr.Tag{"d", fmt.Sprint(many - replaced)}).String())
		}
		return nil
	})
	if err != nil || len(seen) != many {
		t.Errorf("%d of %d places are there, %v", len(seen), many, err)
	}
}

func TestALogThatIsReplaced(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	for i := range 10 {
		store(t, b, event(t, 1621, 1000, fmt.Sprint(i)).String())
	}
	_, err := Log(t.Context(), b.JS, untold, func([]byte) error {
		stream, err := b.JS.Stream(t.Context(), proto.StreamEvents)
		if err != nil {
			return err
		}
		cfg := stream.CachedInfo().Config
		if err := b.JS.DeleteStream(t.Context(), cfg.Name); err != nil {
			return err
		}
		_, err = b.JS.CreateStream(t.Context(), cfg)
		return err
	})
	if err == nil {
		t.Error("half a log is taken for a whole one")
	}
}

func TestNoSystem(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	for _, name := range []string{proto.StreamEvents, proto.KVStream(proto.BucketHeld)} {
		if err := b.JS.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	none := func([]byte) error { return nil }
	if _, err := Log(t.Context(), b.JS, untold, none); !errors.Is(err, ErrNothing) {
		t.Errorf("the log: %v", err)
	}
	if _, err := Held(t.Context(), b.JS, none); !errors.Is(err, ErrNothing) {
		t.Errorf("what is held: %v", err)
	}
}

func TestHeld(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	kv, err := b.Bucket(t.Context(), proto.BucketHeld)
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string, value any) {
		data, err := json.Marshal(value)
		if err == nil {
			_, err = kv.Put(t.Context(), key, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	stays, goes := event(t, 30617, 1000, "a\nb", nostr.Tag{"d", "x"}), event(t, 30618, 1000, "", nostr.Tag{"d", "x"})
	key := func(ev *nostr.Event) string {
		key, err := proto.HeldKeyOf("x", ev).Key()
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	put(key(stays), proto.Held{Event: stays, Identifier: "x", Phase: proto.PhaseWaiting})
	put(key(goes), proto.Held{Event: goes, Identifier: "x", Phase: proto.PhaseWaiting})
	put(proto.HeldMarkKey, proto.WriterMark{Writer: "w", At: time.Now()})
	if err := kv.Delete(t.Context(), key(goes)); err != nil {
		t.Fatal(err)
	}
	var got []string
	n, err := Held(t.Context(), b.JS, func(raw []byte) error {
		got = append(got, string(raw))
		return nil
	})
	if err != nil || n != 1 || !slices.Equal(got, []string{stays.String()}) {
		t.Errorf("%d: %q, %v", n, got, err)
	}
}

func TestAnnounced(t *testing.T) {
	t.Parallel()
	a := Announced{}
	announcement := event(t, 30617, 1000, "", nostr.Tag{"d", "x"})
	for _, raw := range []string{
		announcement.String(), event(t, 30617, 1000, "").String(), event(t, 1621, 1000, "30617", nostr.Tag{"d", "y"}).String(), "30617",
	} {
		a.Note([]byte(raw))
	}
	if want := (nostr.RepoRef{PubKey: announcement.PubKey, Identifier: "x"}); len(a) != 1 || !a[want] {
		t.Errorf("%v", a)
	}
	repos, err := OnServer("https://h/", a)
	if err != nil || len(repos) != 1 || !strings.HasPrefix(repos[0].At, "https://h/npub1") || !strings.HasSuffix(repos[0].At, "/x.git") {
		t.Errorf("%v, %v", repos, err)
	}
}

func run(t testing.TB, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v\n%s", args, err, out)
	}
}

// TestCopy: one that cannot be copied is told of and keeps no other waiting.
func TestCopy(t *testing.T) {
	t.Parallel()
	const npub = "npub1sg6plzptd64u62a878hep2kev88swjh3tw00gjsfl8f237lmu63q0uf63m"
	root, out := t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		run(t, root, "init", "-q", "--bare", filepath.Join(root, npub, name+".git"))
	}
	broken := filepath.Join(root, npub, "b.git", "HEAD")
	if err := os.WriteFile(broken, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	repos, err := gittree.Find(root)
	if err != nil || len(repos) != 3 {
		t.Fatalf("%v, %v", repos, err)
	}
	repos = append(repos, gittree.Repo{Npub: npub, Identifier: "x"}.On("http://127.0.0.1:1"))
	var told bytes.Buffer
	done, err := Copy(t.Context(), gittree.Git("git"), repos, out, func(done, of int) { fmt.Fprint(&told, done, "/", of, " ") })
	if err != nil || done.Repositories != 2 || len(done.Failed) != 2 || done.NotHosted != 0 || told.String() != "0/4 1/4 2/4 3/4 " {
		t.Errorf("%+v, %v, told %q", done, err, &told)
	}
	done, err = Copy(t.Context(), gittree.Git("git"), repos, filepath.Join(broken, "out"), func(int, int) {})
	if err != nil || len(done.Failed) != 4 {
		t.Errorf("into a folder that cannot be made: %+v, %v", done, err)
	}
}
