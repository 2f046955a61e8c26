package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

// TestExportedEvents: those that are held, then those of the log, oldest first, a line each, and
// nothing else. A file is not there before it is whole.
func TestExportedEvents(t *testing.T) {
	t.Parallel()
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing()})
	must(t, err)
	defer b.Close()
	publish := func(m *nats.Msg) {
		t.Helper()
		_, err := b.JS.PublishMsg(t.Context(), m)
		must(t, err)
	}
	author := fixture.NewPerson().At(1000)
	event := func(kind int, content string) *nostr.Event { return author.Sign(kind, content, nostr.Tag{"d", "x"}) }
	stored := func(ev *nostr.Event) *nats.Msg {
		return &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: []byte(strings.Replace(ev.String(), `"kind":`, "\"kind\":\n ", 1))}
	}
	want, gone := "", event(1621, "gone")
	for _, kind := range []int{30617, 30618} {
		ev := event(kind, "a\nb")
		key, err := proto.HeldKey("x", ev)
		must(t, err)
		held := &nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, key), Header: nats.Header{}, Data: marshal(t, proto.Held{Event: ev, Identifier: "x"})}
		if publish(held); kind == 30618 {
			held.Data, held.Header = nil, nats.Header{proto.KVOperation: {proto.KVDelete}}
			publish(held)
		} else {
			want += ev.String() + "\n"
		}
	}
	publish(&nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey), Data: []byte(`{"writer":"x"}`)})
	publish(&nats.Msg{Subject: proto.SubjectEventsMark, Data: []byte(`{"writer":"x"}`)})
	publish(stored(gone))
	publish(stored(event(30617, "older")))
	for i := range 600 { // more than is asked for at once
		ev := event(1621, fmt.Sprint("é < & ", i))
		publish(stored(ev))
		want += ev.String() + "\n"
	}
	newer := event(30617, "newer")
	publish(stored(newer))
	want += newer.String() + "\n"
	publish(&nats.Msg{Subject: stored(gone).Subject, Header: nats.Header{proto.HeaderRemoved: {gone.ID}}})

	dir := t.TempDir()
	e := exportCommand{Output: filepath.Join(dir, "events"), Held: true, Quiet: true, From: "https://h/"}
	r := &reader{Bus: b, ctx: within(t)}
	must(t, e.events(r, newProgress(true)))
	if got, err := os.ReadFile(e.Output); err != nil || string(got) != want {
		t.Errorf("%d bytes, want %d: %v", len(got), len(want), err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	e.Output = filepath.Join(dir, "interrupted")
	if err := e.events(&reader{Bus: b, ctx: stopped}, newProgress(true)); err == nil {
		t.Error("an interrupted export is whole")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestCopy: one that cannot be copied is told of, and the others are copied.
func TestCopy(t *testing.T) {
	t.Parallel()
	root, out := t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		gittest.Git(t, root, "init", "-q", "--bare", filepath.Join(root, npub, name+".git"))
	}
	broken := filepath.Join(root, npub, "b.git", "HEAD")
	must(t, os.WriteFile(broken, []byte("nonsense"), 0o600))
	repos, err := gittree.Find(root)
	must(t, err)
	repos = append(repos, gittree.Repo{Name: npub + "/x.git"}.On("http://127.0.0.1:1"))
	for dir, failed := range map[string]int{out: 2, filepath.Join(broken, "out"): 4} {
		e := exportCommand{Git: dir}
		err := e.copy(&reader{ctx: t.Context()}, repos, newProgress(true))
		if err == nil || !strings.HasPrefix(err.Error(), fmt.Sprint(failed, " repositories could not be copied: ")) {
			t.Errorf("to %s: %v", dir, err)
		}
	}
	if copied, err := gittree.Find(out); err != nil || len(copied) != 2 {
		t.Errorf("%v, %v", copied, err)
	}
}
