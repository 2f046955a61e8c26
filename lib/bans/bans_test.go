package bans

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

var (
	alice, bob = strings.Repeat("a", 64), strings.Repeat("b", 64)
	someID     = strings.Repeat("1", 64)
)

func npub(key string) string { return fixture.Unsigned(key).Npub }

func encoded(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}

// TestSubjects: every form has the key of its ban; what has none of the forms is refused.
func TestSubjects(t *testing.T) {
	t.Parallel()
	words := strings.NewReplacer("NPROFILE", encoded(nip19.EncodeProfile(alice, nil)), "NPUB", npub(alice), "NOTE", encoded(nip19.EncodeNote(someID)), "NEVENT", encoded(nip19.EncodeEvent(someID, nil, "")),
		"NADDR", encoded(nip19.EncodeEntity(alice, 30617, "tree", nil)), "NSTATE", encoded(nip19.EncodeEntity(alice, 30618, "tree", nil)), "ALICE", alice, "ID", someID)
	for _, c := range fixture.Rows(words.Replace(`
		NPUB                | author.ALICE
		nostr:NPROFILE      | author.ALICE
		NPUB/a.b/ü *>       | repository.ALICE/a=2Eb=2F=C3=BC=20=2A=3E
		30617:ALICE:a.b/ü *> | repository.ALICE/a=2Eb=2F=C3=BC=20=2A=3E
		NADDR               | repository.ALICE/tree
		https://x.example/NPUB/tree.git | repository.ALICE/tree
		NPUB/tree.git       | repository.ALICE/tree
		identifier:tree     | identifier.tree
		identifier:a/b      | identifier.a=2Fb
		tree                |
		a/b                 |
		wss://x.example     | relay.x=2Eexample
		ws://X.example/a/   | relay.x=2Eexample=3A80=2Fa
		kind:1984           | kind.1984
		kind:30617          |
		kind:65536          |
		kind:-1             |
		kind:x              |
		host:Git.Example.com | host.git=2Eexample=2Ecom
		host:https://git.example.com:8443/x | host.git=2Eexample=2Ecom
		host:               |
		address:192.0.2.1   | address.192=2E0=2E2=2E1
		address:2001:db8::1 | address.2001=3Adb8=3A=3A=2F64
		address:2001:db8::/64 | address.2001=3Adb8=3A=3A=2F64
		address:2001:db8::/32 |
		address:x           |
		ID                  | event.ID
		NOTE                | event.ID
		NEVENT              | event.ID
		note1.x             |
		NSTATE              |
		NPUB/               |
		NPUBx               |
		                    |
		NOTE/x              |`)) {
		name, key := c[0], c[1]
		got, err := Parse(name)
		if key == "" {
			if err == nil {
				t.Errorf("%q is %+v", name, got)
			}
			continue
		}
		again, wrong := parseKey(key)
		back, failed := Parse(got.String())
		if err := errors.Join(err, wrong, failed); err != nil || got.Name() != key || again != got || back != got {
			t.Errorf("%q: %+v at %s, and back %+v, %+v, %v", name, got, got.Name(), again, back, err)
		}
	}
	if got, err := Parse("a\nb"); err == nil {
		t.Errorf("two lines are %+v", got)
	}
}

func FuzzParseKey(f *testing.F) {
	for _, key := range []string{"author." + alice, "repository." + alice + "/=", "identifier.a=2Eb", "event.x", "owner." + alice, "repository./x", "."} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		s, err := parseKey(key)
		if err != nil {
			return
		}
		if again, err := s.Key(); again != key || err != nil {
			t.Errorf("%q is %+v, whose key is %q, %v", key, s, again, err)
		}
	})
}

// put is a message of the bucket; a zero ban deletes the key.
func put(s Subject, b proto.Ban) bus.Message {
	m := bus.Message{Subject: proto.KVSubject(proto.BucketBans, s.Name())}
	if b == (proto.Ban{}) {
		m.Header = nats.Header{proto.KVOperation: {proto.KVDelete}}
	}
	m.Data, _ = json.Marshal(b)
	return m
}

// of makes a set of the bans of settings.
func of(t *testing.T, p config.Policy) *Set {
	t.Helper()
	s, err := New(p, slog.New(slog.DiscardHandler))
	fixture.Must(t, err)
	return s
}

func event(author string, kind int, tags ...nostr.Tag) *nostr.Event {
	return fixture.Unsigned(author).Sign(kind, "", tags...)
}

// TestWhatIsBanned: the filters of a ban match those events that it is on. An event is written as
// its author, its kind and its d tag; all of bob's name alice and her repository.
func TestWhatIsBanned(t *testing.T) {
	t.Parallel()
	words := "alice:1 alice:7 alice:5 bob:1 bob:1621 alice:30617:tree alice:30618:tree alice:30617:bush bob:30618:tree bob:30617:bush alice:30023:tree bob:1984"
	all, ofAlice := map[string]*nostr.Event{}, "alice:1 alice:30023:tree alice:30617:bush alice:30617:tree alice:30618:tree alice:5 alice:7"
	for word := range strings.FieldsSeq(words) {
		part := strings.Split(word+":", ":")
		kind, _ := strconv.Atoi(part[1])
		all[word] = event(alice, kind, nostr.Tag{"d", part[2]})
		if part[0] == "bob" {
			all[word] = event(bob, kind, nostr.Tag{"d", part[2]}, nostr.Tag{"p", alice}, nostr.Tag{"a", "30617:" + alice + ":tree"})
		}
	}
	check := func(name string, s *Set, want, message string) {
		t.Helper()
		var banned, matched []string
		for _, word := range slices.Sorted(maps.Keys(all)) {
			ev := all[word]
			b, matches := s.Event(ev), false
			for _, f := range s.Reach() {
				matches = matches || f.Matches(ev)
			}
			if matches {
				matched = append(matched, word)
			}
			if ref := (nostr.RepoRef{PubKey: ev.PubKey, Identifier: ev.Tags.GetD()}); ev.Kind == 30617 && (s.Repository(ref) != nil) != (b != nil) {
				t.Errorf("%s: repository %s is banned: %v", name, ref, b == nil)
			}
			if b != nil {
				if banned = append(banned, word); !strings.HasPrefix(b.Message(), message) {
					t.Errorf("%s: said is %q", name, b.Message())
				}
			}
		}
		if got := strings.Join(banned, " "); got != want || strings.Join(matched, " ") != want {
			t.Errorf("%s bans %s, its filters find %q; want %s", name, got, matched, want)
		}
	}
	for name, want := range map[string]string{
		all["alice:1"].ID: "alice:1", npub(alice): ofAlice, npub(alice) + "/tree": "alice:30617:tree alice:30618:tree",
		"identifier:tree": "alice:30617:tree alice:30618:tree bob:30618:tree",
	} {
		subject, err := Parse(name)
		s, told := of(t, config.Policy{}), []Subject{}
		s.OnChange(func(s Subject) { told = append(told, s) })
		s.read(put(subject, proto.Ban{Reason: "spam", At: time.Now()}))
		check(name, s, want, "blocked: spam")
		s.read(put(subject, proto.Ban{}))
		check(name+", lifted", s, "", "")
		if err != nil || len(told) != 2 || told[1] != subject {
			t.Errorf("%s: %v; told of %v", name, err, told)
		}
	}
	check("NGIT_EVENT_BLACKLIST", of(t, config.Policy{EventBlacklist: []string{npub(alice)}}), ofAlice, "blocked: this author")
	check("NGIT_REPOSITORY_BLACKLIST", of(t, config.Policy{RepositoryBlacklist: []string{npub(alice), "bush", npub(bob) + "/tree"}}),
		"alice:30617:bush alice:30617:tree alice:30618:tree bob:30617:bush bob:30618:tree", "blocked: this repository")
}

// TestAudit: who sets or lifts a ban is told, with the reason.
func TestAudit(t *testing.T) {
	t.Parallel()
	subject, err := Parse(npub(alice))
	fixture.Must(t, err)
	s, told := of(t, config.Policy{}), []string{}
	s.OnAudit(func(what Subject, by proto.Ban, lifted bool) {
		told = append(told, fmt.Sprint(what == subject, by.By, by.Reason, lifted))
	})
	s.read(put(subject, proto.Ban{By: "root@host", Reason: "spam"}))
	lifted := put(subject, proto.Ban{})
	lifted.Data, _ = json.Marshal(proto.Ban{By: "eve@host"})
	s.read(lifted)
	if want := []string{fmt.Sprint(true, "root@host", "spam", false), fmt.Sprint(true, "eve@host", "", true)}; !slices.Equal(told, want) || s.Find(subject) != nil {
		t.Errorf("told %q, want %q", told, want)
	}
}

// TestWhatRemovesFirst: of several bans the one counts that removes first.
func TestWhatRemovesFirst(t *testing.T) {
	t.Parallel()
	s := of(t, config.Policy{})
	at := time.Unix(1_000_000, 0)
	s.read(put(Subject{PubKey: alice}, proto.Ban{At: at}))
	s.read(put(Subject{Identifier: "tree"}, proto.Ban{At: at.Add(2 * time.Hour), Purge: true}))
	s.read(put(Subject{PubKey: alice, Identifier: "tree"}, proto.Ban{At: at.Add(time.Hour), Purge: true}))
	order := ""
	for name := range s.Reach() {
		order += name[:6] + " "
	}
	if order != "reposi identi author " {
		t.Errorf("in the order %q", order)
	}
	tree := nostr.Tag{"d", "tree"}
	for ev, over := range map[*nostr.Event]time.Duration{ // after at, with a grace of an hour; 0: never
		event(alice, 1): 0, event(alice, 30617, tree): 2 * time.Hour, event(bob, 30617, tree): 3 * time.Hour, event(alice, 30617, nostr.Tag{"d", "bush"}): 0,
	} {
		b := s.Event(ev)
		for _, after := range []time.Duration{0, over - time.Second, over, 1000 * time.Hour} {
			if want := over != 0 && after >= over; b == nil || b.Over(time.Hour, at.Add(after)) != want {
				t.Errorf("%v after %s: %+v is over: %v", ev.Tags, after, b, !want)
			}
		}
	}
}

// TestBucket: what is written is read, by who opens the set later and by who follows it.
func TestBucket(t *testing.T) {
	t.Parallel()
	b, err := bus.Open(t.Context(), bus.Options{Sizing: proto.DefaultSizing()})
	fixture.Must(t, err)
	t.Cleanup(b.Close)
	tree, note := Subject{PubKey: alice, Identifier: "tree"}, Subject{Event: someID}
	err = errors.Join(
		Put(t.Context(), b.JS, tree, proto.Ban{Reason: " two\n lines\x1b[31m " + strings.Repeat("é", 200), At: time.Now(), Purge: true}),
		Put(t.Context(), b.JS, note, proto.Ban{}), PutInfo(t.Context(), b.JS, "name", "A name", ""), Use(t.Context(), b.JS, someID, time.Minute))
	if again := Use(t.Context(), b.JS, someID, time.Minute); err != nil || !bus.IsConflict(again) {
		t.Errorf("%v; used twice: %v", err, again)
	}
	s, err := Open(t.Context(), b.JS, config.Policy{}, slog.New(slog.DiscardHandler))
	fixture.Must(t, err)
	if got := s.Find(tree); got == nil || !got.Purge || !strings.HasPrefix(got.Reason, "two lines [31m é") || len(got.Reason) > maxReason || got.What != tree.String() {
		t.Errorf("%+v", got)
	}
	var all []string
	for b := range s.All() {
		all = append(all, b.String())
	}
	if strings.Join(all, " ") != note.String()+" "+tree.String() || s.Info().Name != "A name" {
		t.Errorf("%q, %+v", all, s.Info())
	}
	told := make(chan Subject, 1)
	s.OnChange(func(s Subject) { told <- s })
	go s.Run(t.Context())
	err = Lift(t.Context(), b.JS, tree, "root@host")
	if got := <-told; err != nil || got != tree || s.Find(tree) != nil {
		t.Errorf("told of %s, %v", got, err)
	}
}
