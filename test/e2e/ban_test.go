package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestBan: what an operator bans is gone at every front door, for every way to ask; unban brings it
// back, and a purge does not.
func TestBan(t *testing.T) {
	t.Parallel()
	secret := gonostr.GeneratePrivateKey()
	settings := map[string]string{"NGIT_DELETION_GRACE": "3s", "NGIT_RELAY_OWNER_NSEC": secret}
	t.Run("one process", func(t *testing.T) {
		t.Parallel()
		p := world.Start(t, settings)
		moderate(t, fixture.PersonOf(secret), []string{p.URL}, map[string]string{"NGIT_NATS_URL": p.NATS})
	})
	t.Run("services apart", func(t *testing.T) {
		t.Parallel()
		nats, volume := world.GuardedNATS(t), world.Folder(t)
		var doors []string
		for _, name := range world.Services {
			r := world.StartReplica(t, name, nats.URL, volume, nats.As(name, settings))
			if name == "gateway" {
				doors = []string{r.URL(), world.StartReplica(t, name, nats.URL, volume, nats.As(name, settings)).URL()}
			}
		}
		env := map[string]string{"NGIT_NATS_URL": nats.URL}
		maps.Copy(env, nats.As("operator", nil))
		moderate(t, fixture.PersonOf(secret), doors, env)
	})
}

// moderation is a system in which things are banned.
type moderation struct {
	*testing.T
	doors    []string
	env      map[string]string
	operator *fixture.Person
	relay    *world.Relay
	repo     *world.Repo // of an owner who is banned
	issue    *nostr.Event
	guest    *fixture.Person
}

func moderate(t *testing.T, operator *fixture.Person, doors []string, env map[string]string) {
	relay := world.NewRelay(t)
	m := &moderation{T: t, doors: doors, env: env, operator: operator, relay: relay, guest: fixture.NewPerson()}
	m.repo = world.Host(t, doors[0], "tree", world.Hosting{Relays: []string{relay.URL}})
	good := world.Host(t, doors[0], "bush", world.Hosting{Relays: []string{relay.URL}})
	m.issue = m.newIssue(m.repo, "an issue")
	if ok, message := world.Submit(t, world.RelayAt(doors[0]), m.issue); !ok {
		t.Fatal(message)
	}
	note := m.newIssue(good, "of both")
	note.Tags = append(note.Tags, m.repo.Owner.Repo("tree"))
	note = m.guest.Sign(1621, "of both", note.Tags...)
	world.Submit(t, world.RelayAt(doors[0]), note)
	heard := m.newIssue(m.repo, "from the relay")
	m.until("the relay is synced from", func() bool { m.relay.Publish(heard); return m.served(m.doors[0], heard) })

	for _, what := range []string{m.repo.Owner.Npub, m.repo.Owner.Npub + "/tree", "tree"} {
		m.command("ban", what, "--reason=spam, sorry")
		m.isBanned(what, good)
		m.until(what+": its issue is banned with it", func() bool {
			return strings.Contains(m.command("why", m.issue.ID), "→ tendril unban "+what+"\n")
		})
		m.until(what+": the good repository stays", func() bool { return m.served(doors[0], good.Announcement) && m.served(doors[0], note) })
		m.command("unban", what)
		m.isBack(what)
	}
	m.command("ban", m.issue.ID)
	m.everywhere("an event is banned", func(door string) bool { return !m.served(door, m.issue) && m.served(door, m.repo.Announcement) })
	if ok, message := world.Submit(t, world.RelayAt(doors[0]), m.guest.Comment("comment", m.issue, m.issue)); ok ||
		message != "blocked: this event is not welcome here" {
		t.Errorf("a comment on a banned event is answered %v, %q", ok, message)
	}
	m.command("unban", m.issue.ID)
	m.isBack("event")
	m.byClient()
	m.reported()

	m.command("ban", m.repo.Owner.Npub+"/tree", "--purge")
	if list := m.command("bans"); !strings.Contains(list, m.repo.Owner.Npub+"/tree") || !strings.Contains(list, "true") {
		t.Errorf("bans:\n%s", list)
	}
	m.until("the data is removed", func() bool { return !strings.Contains(m.command("repo", "list"), m.repo.Owner.Npub) })
	m.until("the events are removed", func() bool {
		m.command("unban", m.repo.Owner.Npub+"/tree")
		gone := !m.served(doors[0], m.issue) && !m.served(doors[0], m.repo.Announcement)
		if !gone {
			m.command("ban", m.repo.Owner.Npub+"/tree", "--purge")
			time.Sleep(8 * time.Second)
		}
		return gone
	})
	if !m.served(doors[0], note) || !m.served(doors[0], good.State) {
		t.Error("what also belongs to another repository is gone too")
	}
}

func (m *moderation) newIssue(r *world.Repo, text string) *nostr.Event {
	return m.guest.Sign(1621, text, r.Owner.Repo(r.Name))
}

// command runs tendril.
func (m *moderation) command(args ...string) string {
	m.Helper()
	out, err := world.RunToEnd(m.T, world.Folder(m.T), m.env, args...)
	if err != nil {
		m.Fatalf("tendril %v: %v\n%s", args, err, out)
	}
	return out
}

// until waits for an effect and tells how long that took.
func (m *moderation) until(what string, ok func() bool) {
	m.Helper()
	began := time.Now()
	fixture.Await(m.T, what, ok)
	m.Logf("%4d ms: %s", time.Since(began).Milliseconds(), what)
}

func (m *moderation) everywhere(what string, ok func(door string) bool) {
	m.Helper()
	for _, door := range m.doors {
		m.until(what, func() bool { return ok(door) })
	}
}

func (m *moderation) served(door string, ev *nostr.Event) bool {
	m.Helper()
	return len(world.Fetch(m.T, world.RelayAt(door), nostr.Filter{IDs: []string{ev.ID}})) == 1
}

// reconciled reports whether NIP-77 tells of an event.
func (m *moderation) reconciled(door string, ev *nostr.Event) bool {
	m.Helper()
	s := world.Dial(m.T, world.RelayAt(door))
	defer s.Close()
	s.Send("NEG-OPEN", "n", nostr.Filter{Authors: []string{ev.PubKey}}, "6100000200")
	return strings.Contains(fmt.Sprint(s.Next()), ev.ID)
}

// isBanned: nothing of the repository is to be seen, and nothing is taken for it.
func (m *moderation) isBanned(what string, good *world.Repo) {
	m.Helper()
	const reason = "blocked: spam, sorry"
	all := []*nostr.Event{m.repo.Announcement, m.repo.State, m.issue}
	m.everywhere(what+": REQ", func(door string) bool {
		for _, ev := range all {
			if m.served(door, ev) {
				return false
			}
		}
		return true
	})
	m.everywhere(what+": COUNT and NEG", func(door string) bool {
		return world.Count(m.T, world.RelayAt(door), nostr.Filter{Authors: []string{m.repo.Owner.PubKey}}) == 0 &&
			!m.reconciled(door, m.issue) && !m.reconciled(door, m.repo.Announcement)
	})
	m.everywhere(what+": the page", func(door string) bool {
		res, body := world.Get(m.T, m.repo.At(door))
		_, home := world.Get(m.T, door)
		return res.StatusCode == http.StatusForbidden && strings.Contains(body, reason) && !strings.Contains(home, "/"+m.repo.Owner.Npub+"/tree.git")
	})
	m.everywhere(what+": git", func(door string) bool {
		clone, failed := world.TryGit(m.T, m.repo.Work.Dir, "ls-remote", m.repo.At(door))
		push, refused := world.TryGit(m.T, m.repo.Work.Dir, "push", m.repo.At(door), "main")
		return failed != nil && strings.Contains(clone, "remote: "+reason) && refused != nil && strings.Contains(push, "remote: "+reason)
	})
	for _, ev := range []*nostr.Event{m.repo.Announcement, m.newIssue(m.repo, "another"), m.repo.NewState()} {
		if ok, message := world.Submit(m.T, world.RelayAt(m.doors[0]), ev); ok || message != reason {
			m.Errorf("%s: an event of kind %d is answered %v, %q", what, ev.Kind, ok, message)
		}
	}
	bad, fine := m.newIssue(m.repo, "bad, from the relay"), m.newIssue(good, "fine, from the relay, while banned: "+what)
	m.relay.Publish(bad, fine)
	m.until(what+": sync", func() bool { return m.served(m.doors[0], fine) })
	if m.served(m.doors[0], bad) {
		m.Errorf("%s: what the relay has is served", what)
	}
}

// isBack: all is as it was, and live subscriptions hear of new events.
func (m *moderation) isBack(what string) {
	m.Helper()
	m.everywhere(what+": it is back", func(door string) bool {
		res, _ := world.Get(m.T, m.repo.At(door))
		return m.served(door, m.repo.Announcement) && m.served(door, m.issue) && m.reconciled(door, m.issue) && res.StatusCode == http.StatusOK
	})
	m.everywhere(what+": git is back", func(door string) bool {
		_, err := world.TryGit(m.T, m.repo.Work.Dir, "ls-remote", m.repo.At(door))
		return err == nil
	})
	s := world.Dial(m.T, world.RelayAt(m.doors[0]))
	defer s.Close()
	s.Send("REQ", "live", nostr.Filter{Tags: nostr.TagMap{"a": {m.repo.Owner.Address("tree")}}, LimitZero: true})
	s.Next() // EOSE
	ev := m.newIssue(m.repo, "after "+what)
	if ok, message := world.Submit(m.T, world.RelayAt(m.doors[len(m.doors)-1]), ev); !ok {
		m.Errorf("%s: a new event is answered %q", what, message)
	}
	for world.EventID(s.Next()) != ev.ID { // what the relay has and was refused may come before
	}
}

// manage sends a request of NIP-86.
func (m *moderation) manage(auth *nostr.Event, body string) (status int, answer string) {
	m.Helper()
	req, err := http.NewRequest(http.MethodPost, m.doors[0], strings.NewReader(body))
	if err != nil {
		m.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/nostr+json+rpc")
	data, _ := auth.MarshalJSON()
	req.Header.Set("Authorization", "Nostr "+base64.StdEncoding.EncodeToString(data))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		m.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		m.Fatal(err)
	}
	return res.StatusCode, string(bytes.TrimSpace(text))
}

func authorise(by *fixture.Person, at nostr.Timestamp, url, method, body string) *nostr.Event {
	payload := sha256.Sum256([]byte(body))
	return by.At(at).Sign(27235, "", nostr.Tag{"u", url}, nostr.Tag{"method", method}, nostr.Tag{"payload", hex.EncodeToString(payload[:])})
}

// byClient: the operator's client bans (NIP-86), and no other does.
func (m *moderation) byClient() {
	m.Helper()
	const url = "http://" + fixture.Domain + "/"
	ban := fmt.Sprintf(`{"method":"banpubkey","params":["%s","by client"]}`, m.repo.Owner.PubKey)
	now := nostr.Now()
	forged := authorise(m.operator, now, url, "POST", ban)
	forged.Sig = authorise(m.operator, now, url, "GET", ban).Sig
	for name, auth := range map[string]*nostr.Event{
		"no operator": authorise(m.guest, now, url, "POST", ban), "a wrong signature": forged, "another method": authorise(m.operator, now, url, "GET", ban),
		"too old": authorise(m.operator, now-61, url, "POST", ban), "too new": authorise(m.operator, now+90, url, "POST", ban),
		"another body": authorise(m.operator, now, url, "POST", ban+" "), "another relay": authorise(m.operator, now, "https://other.example/", "POST", ban),
		"another address": authorise(m.operator, now, url+"x", "POST", ban), "another kind": m.operator.Sign(1, ""),
	} {
		if status, answer := m.manage(auth, ban); status != http.StatusUnauthorized || !strings.Contains(answer, `"error":"`) {
			m.Errorf("%s: %d %s", name, status, answer)
		}
	}
	right := authorise(m.operator, now, url, "POST", ban)
	if status, answer := m.manage(right, ban); status != http.StatusOK || answer != `{"result":true}` {
		m.Errorf("the operator is answered %d %s", status, answer)
	}
	m.everywhere("banned by a client", func(door string) bool { return !m.served(door, m.repo.Announcement) })
	if status, answer := m.manage(right, ban); status != http.StatusUnauthorized || !strings.Contains(answer, "used before") {
		m.Errorf("a request that was replayed is answered %d %s", status, answer)
	}
	for body, want := range map[string]string{
		`{"method":"listbannedpubkeys","params":[]}`:                                      `{"result":[{"pubkey":"` + m.repo.Owner.PubKey + `","reason":"by client"}]}`,
		`{"method":"listbannedevents"}`:                                                   `{"result":[]}`,
		`{"method":"changerelayname","params":["A new name"]}`:                            `{"result":true}`,
		`{"method":"changerelayicon","params":["javascript:1"]}`:                          `the first parameter is too long, or not a URL`,
		`{"method":"blockip","params":["1.2.3.4"]}`:                                       `is not supported`,
		`{"method":"banevent","params":["x"]}`:                                            `not 64 lower-case hex digits`,
		`{"method":"supportedmethods","params":[]}`:                                       `"unbanpubkey"`,
		fmt.Sprintf(`{"method":"unbanpubkey","params":["%s"]}`, strings.Repeat("ab", 32)): `{"result":true}`,
	} {
		if status, answer := m.manage(authorise(m.operator, now, url, "POST", body), body); status != http.StatusOK || !strings.Contains(answer, want) {
			m.Errorf("%s is answered %d %s", body, status, answer)
		}
	}
	m.everywhere("a new name", func(door string) bool {
		_, about := world.Get(m.T, door, "Accept", "application/nostr+json")
		return strings.Contains(about, `"name": "A new name"`)
	})
	unban := fmt.Sprintf(`{"method":"unbanpubkey","params":["%s"]}`, m.repo.Owner.PubKey)
	m.manage(authorise(m.operator, now, url, "POST", unban), unban)
	m.isBack("by client")
}

// reported: reports are taken about what is here, and listed with what is banned.
func (m *moderation) reported() {
	m.Helper()
	relay := world.RelayAt(m.doors[0])
	about := m.guest.Sign(1984, "look", nostr.Tag{"e", m.issue.ID, "spam"}, nostr.Tag{"p", m.guest.PubKey})
	author := m.guest.Sign(1984, "him", nostr.Tag{"p", m.repo.Owner.PubKey, "impersonation"})
	for ev, want := range map[*nostr.Event]bool{about: true, author: true, m.guest.Sign(1984, "", nostr.Tag{"p", fixture.NewPerson().PubKey, "spam"}): false} {
		if ok, message := world.Submit(m.T, relay, ev); ok != want {
			m.Errorf("a report is answered %v, %q", ok, message)
		}
	}
	m.command("ban", m.issue.ID)
	list := m.command("reports")
	for _, line := range strings.Split(list, "\n") {
		isBanned := strings.Contains(line, m.issue.ID)
		if isBanned != strings.Contains(line, "true") || isBanned != strings.Contains(line, "spam") {
			m.Errorf("reports: %s", line)
		}
	}
	if !strings.Contains(list, m.issue.ID) || !strings.Contains(list, m.repo.Owner.Npub) {
		m.Errorf("reports:\n%s", list)
	}
	m.command("unban", m.issue.ID)
}
