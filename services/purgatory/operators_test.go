package purgatory_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/proto"
)

// ask asks as an operator does.
func (w *world) ask(verb proto.RepoVerb, ref string) (a proto.RepoAnswer) {
	w.Helper()
	inbox := proto.RepoAnswerSubject(strconv.FormatInt(time.Now().UnixNano(), 36))
	sub, err := w.Bus.Conn.SubscribeSync(inbox)
	if err != nil {
		w.Fatal(err)
	}
	defer sub.Unsubscribe()
	eventually(w, "operators are answered", func() bool {
		err = w.Bus.Conn.PublishRequest(proto.RepoSubject(verb), inbox, []byte(`{"ref":"`+ref+`"}`))
		var m *nats.Msg
		if err == nil {
			m, err = sub.NextMsg(patience)
		}
		if err == nil {
			err = json.Unmarshal(m.Data, &a)
		}
		return !errors.Is(err, nats.ErrNoResponders)
	})
	if err != nil {
		w.Fatal(err)
	}
	return a
}

// TestAnOperatorAsks: an operator sees what is not hosted any more, and may keep it or remove it at
// once; what is hosted stays.
func TestAnOperatorAsks(t *testing.T) {
	w := newWorld(t)
	w.pushFirst()
	first, ref := announcement(t, "announcement", alice, "x"), alicesX
	one := func(verb proto.RepoVerb) proto.RepoStatus {
		t.Helper()
		a := w.ask(verb, ref)
		if a.Error != "" || len(a.Repos) != 1 || a.Repos[0].Ref != ref {
			t.Fatalf("%s: %+v", verb, a)
		}
		return a.Repos[0]
	}
	if s := one(proto.RepoShow); s.State != proto.RepoHosted || s.References != 1 || s.Changed.IsZero() || s.States != 1 || !s.Until.IsZero() {
		t.Errorf("a hosted repository: %+v", s)
	}
	if s := one(proto.RepoRestore); s.State != proto.RepoHosted {
		t.Errorf("a hosted repository, restored: %+v", s)
	}
	for name, a := range map[string]proto.RepoAnswer{
		"only its owner":    w.ask(proto.RepoRemove, ref),
		"nothing of":        w.ask(proto.RepoShow, repo(bob, "x").String()),
		"an address is":     w.ask(proto.RepoShow, "x"),
		"invalid character": w.ask(proto.RepoShow, `"`),
	} {
		if !strings.Contains(a.Error, name) || len(a.Repos) > 0 {
			t.Errorf("%s: %+v", name, a)
		}
	}
	listed := func(state proto.RepoState) (s proto.RepoStatus) {
		t.Helper()
		eventually(t, string("it is listed as "+state), func() bool {
			a := w.ask(proto.RepoList, "")
			if len(a.Repos) != 1 || a.Shards != proto.Shards {
				t.Fatalf("listed: %+v", a)
			}
			s = a.Repos[0]
			return s.State == state
		})
		return s
	}
	if s := listed(proto.RepoHosted); s.Ref != ref || s.References != 1 || s.Bytes == 0 || s.Changed.IsZero() {
		t.Errorf("listed where it is hosted: %+v", s)
	}
	w.in.accept(deletion(alice, "a", ref))
	w.told.await("x ended")
	if s := listed(proto.RepoEnded); s.Reason != "deleted" || s.Announcement != first.ID || s.Until.Sub(s.Since) != 7*24*time.Hour {
		t.Errorf("listed when it has ended: %+v", s)
	}
	if s := one(proto.RepoRestore); !s.Kept || !s.Until.IsZero() || s.State != proto.RepoEnded {
		t.Errorf("restored: %+v", s)
	}
	if s := listed(proto.RepoEnded); !s.Kept || !s.Until.IsZero() {
		t.Errorf("listed when it was restored: %+v", s)
	}
}

// TestADamagedRepositoryCanBeRemoved: an operator gets rid of a repository whose references cannot
// be read.
func TestADamagedRepositoryCanBeRemoved(t *testing.T) {
	w := newWorld(t)
	ref := alicesX
	w.pushFirst()
	w.in.accept(deletion(alice, "a", ref))
	w.told.await("x ended")
	path := w.repo(alice, "x").Path
	if err := errors.Join(os.WriteFile(filepath.Join(path, "packed-refs"), []byte("garbage\x00\n"), 0o644), os.RemoveAll(filepath.Join(path, "objects"))); err != nil {
		t.Fatal(err)
	}
	if a := w.ask(proto.RepoShow, ref); a.Error != "" || a.Repos[0].Reason != "deleted" || a.Repos[0].Damage == "" {
		t.Errorf("shown: %+v", a)
	}
	if a := w.ask(proto.RepoRemove, ref); a.Error != "" || w.repo(alice, "x").Exists() {
		t.Errorf("removed: %+v", a)
	}
}
