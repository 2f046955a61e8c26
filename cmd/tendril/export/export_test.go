package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture/gittest"
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

func publish(t testing.TB, b *bus.Bus, messages ...*nats.Msg) {
	t.Helper()
	for some := range slices.Chunk(messages, 500) {
		if _, err := b.PublishBatch(t.Context(), some, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// stored is the message of an event in the log.
func stored(ev *nostr.Event) *nats.Msg {
	return &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: []byte(ev.String())}
}

func untold(int, int) {}

// TestLog: all events, oldest first, as they are stored, and nothing else.
func TestLog(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	messages := []*nats.Msg{stored(event(t, 30617, 1000, "older", nostr.Tag{"d", "a"}))}
	for i := range 2500 { // more than is asked for at once
		m := stored(event(t, 1621, 1000, fmt.Sprint("é < & ", i)))
		if i%2 == 0 {
			m.Data = []byte(strings.Replace(string(m.Data), `"kind":1621`, `"kind": 1621`, 1)) // stored as it came
		}
		messages = append(messages, m)
	}
	gone, newer := stored(event(t, 1621, 1000, "it has left the log")), stored(event(t, 30617, 2000, "newer", nostr.Tag{"d", "a"}))
	messages = append(messages, newer)
	publish(t, b, append(messages, gone,
		&nats.Msg{Subject: proto.SubjectEventsMark, Data: []byte(`{"writer":"x"}`)})...)
	publish(t, b, &nats.Msg{Subject: gone.Subject, Header: nats.Header{proto.HeaderRemoved: {strings.Repeat("a", 64)}}})
	var got, want []string
	for _, m := range messages[1:] {
		want = append(want, string(m.Data))
	}
	last := -1
	n, err := Log(t.Context(), b.JS, func(done, of int) {
		if done <= last || of < done {
			t.Errorf("%d of %d after %d", done, of, last)
		}
		last = done
	}, func(raw []byte) error {
		got = append(got, string(raw))
		return nil
	})
	if err != nil || n != len(want) || !slices.Equal(got, want) {
		t.Errorf("%d events, want %d, or others: %v", n, len(want), err)
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

// TestALogThatGoes: half a log is not taken for a whole one, and none is no empty one.
func TestALogThatGoes(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	stream, err := b.JS.Stream(t.Context(), proto.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, b, stored(event(t, 1621, 1000, "a")), stored(event(t, 1621, 1000, "b")))
	_, err = Log(t.Context(), b.JS, untold, func([]byte) error {
		_ = b.JS.DeleteStream(t.Context(), proto.StreamEvents)
		_, err := b.JS.CreateStream(t.Context(), stream.CachedInfo().Config)
		return err
	})
	if err == nil {
		t.Error("half a log is taken for a whole one")
	}
	if err := errors.Join(b.JS.DeleteStream(t.Context(), proto.StreamEvents), b.JS.DeleteKeyValue(t.Context(), proto.BucketHeld)); err != nil {
		t.Fatal(err)
	}
	if _, err := Log(t.Context(), b.JS, untold, nil); !errors.Is(err, ErrNothing) {
		t.Errorf("the log: %v", err)
	}
	if _, err := Held(t.Context(), b.JS, nil); !errors.Is(err, ErrNothing) {
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
	for _, ev := range []*nostr.Event{stays, goes} {
		key, err := proto.HeldKeyOf("x", ev).Key()
		if err != nil {
			t.Fatal(err)
		}
		put(key, proto.Held{Event: ev, Identifier: "x", Phase: proto.PhaseWaiting})
		if ev == goes {
			if err := kv.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(proto.HeldMarkKey, proto.WriterMark{Writer: "w"})
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

// TestCopy: one that cannot be copied is told of, and the others are copied.
func TestCopy(t *testing.T) {
	t.Parallel()
	const npub = "npub1sg6plzptd64u62a878hep2kev88swjh3tw00gjsfl8f237lmu63q0uf63m"
	root, out := t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		gittest.Git(t, root, "init", "-q", "--bare", filepath.Join(root, npub, name+".git"))
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
	for dir, copied := range map[string]int{out: 2, filepath.Join(broken, "out"): 0} {
		told := ""
		done, err := Copy(t.Context(), gittree.Git("git"), repos, dir, func(done, of int) { told += fmt.Sprint(done, "/", of, " ") })
		if err != nil || done.Repositories != copied || len(done.Failed) != 4-copied || done.NotHosted != 0 || told != "0/4 1/4 2/4 3/4 " {
			t.Errorf("to %s: %+v, %v, told %q", dir, done, err, told)
		}
	}
}
