package world

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// moderation is a place where things are banned.
type moderation struct {
	*Place
	repo, good *Repo // the owner of the first is banned
	issue      *nostr.Event
	guest      *fixture.Person
}

// newModeration makes two repositories, an issue about the first, and one about both.
func newModeration(p *Place) (m *moderation, both *nostr.Event) {
	m = &moderation{Place: p, guest: p.Person()}
	how := Hosting{}
	if p.Second != nil {
		how.Relays = []string{p.Second.URL}
	}
	m.repo, m.good = p.Host("tree", how), p.Host("bush", how)
	m.issue = m.newIssue(m.repo, "an issue")
	both = m.guest.Sign(1621, "of both", m.good.Owner.Repo("bush"), m.repo.Owner.Repo("tree"))
	p.Accepts(m.issue, both)
	return m, both
}

// Ban tells that what an operator bans is gone at every front door, for every way to ask. Unban
// brings it back.
func Ban(p *Place) {
	if p.Tool == nil {
		return
	}
	m, both := newModeration(p)
	if p.Second != nil {
		heard := m.newIssue(m.repo, "from the relay")
		m.until("the relay is synced from", func() bool { p.Second.Publish(heard); return p.Has(heard) })
	}
	for _, what := range []string{m.repo.Owner.Npub, m.repo.Owner.Npub + "/tree", "identifier:tree"} {
		m.command("ban", what, "--reason=spam, sorry")
		m.isBanned(what)
		m.until(what+": its issue is banned with it", func() bool {
			return strings.Contains(m.command("why", m.issue.ID), "→ tendril unban "+what+"\n")
		})
		m.until(what+": the good repository stays", func() bool { return p.Has(m.good.Announcement) && p.Has(both) })
		m.command("unban", what)
		m.isBack(what)
	}
	m.command("ban", m.issue.ID)
	m.everywhere("an event is banned", func(door Door) bool { return !door.Has(m.issue) && door.Has(m.repo.Announcement) })
	p.Refuses("blocked: this event is not welcome here", m.guest.Comment("comment", m.issue, m.issue))
	m.command("unban", m.issue.ID)
	m.isBack("event")
	if p.Operator != nil {
		m.byClient()
	}
	m.reported()
}

// Purge tells that a purge removes what is banned, and unban does not bring it back. It takes as
// long as the Tendril waits before it removes what was deleted.
func Purge(p *Place) {
	m, both := newModeration(p)
	name := m.repo.Owner.Npub + "/tree"
	m.command("ban", name, "--purge")
	if list := m.command("bans"); !strings.Contains(list, name) || !strings.Contains(list, "true") {
		p.Errorf("bans:\n%s", list)
	}
	m.until("the data is removed", func() bool { return !strings.Contains(m.command("repo", "list"), m.repo.Owner.Npub) })
	m.until("the events are removed", func() bool {
		m.command("unban", name)
		gone := !p.Has(m.issue) && !p.Has(m.repo.Announcement)
		if !gone {
			m.command("ban", name, "--purge")
			time.Sleep(8 * time.Second)
		}
		return gone
	})
	if !p.Has(both) || !p.Has(m.good.State) {
		p.Error("what also belongs to another repository is gone too")
	}
}

func (m *moderation) newIssue(r *Repo, text string) *nostr.Event {
	return m.guest.Sign(1621, text, r.Owner.Repo(r.Name))
}

// command runs tendril.
func (m *moderation) command(args ...string) string {
	m.Helper()
	out, err := m.Tool(args...)
	if err != nil {
		m.Fatalf("tendril %v: %v\n%s", args, err, out)
	}
	return out
}

// until waits for an effect and tells how long that took.
func (m *moderation) until(what string, ok func() bool) {
	m.Helper()
	began := time.Now()
	await(m, what, ok)
	m.Logf("%4d ms: %s", time.Since(began).Milliseconds(), what)
}

func (m *moderation) everywhere(what string, ok func(door Door) bool) {
	m.Helper()
	for _, door := range []Door{m.Door, m.Other} {
		m.until(what, func() bool { return ok(door) })
	}
}

// reconciled reports whether NIP-77 tells of an event.
func (m *moderation) reconciled(door Door, ev *nostr.Event) bool {
	m.Helper()
	s := door.Dial()
	defer s.Close()
	s.Send("NEG-OPEN", "n", nostr.Filter{Authors: []string{ev.PubKey}}, "6100000200")
	return strings.Contains(fmt.Sprint(s.Next()), ev.ID)
}

// isBanned: nothing of the repository is shown, and nothing is taken for it.
func (m *moderation) isBanned(what string) {
	m.Helper()
	const reason = "blocked: spam, sorry"
	m.everywhere(what+": REQ", func(door Door) bool {
		return !slices.ContainsFunc([]*nostr.Event{m.repo.Announcement, m.repo.State, m.issue}, door.Has)
	})
	m.everywhere(what+": COUNT and NEG", func(door Door) bool {
		return door.Count(by(m.repo.Owner)) == 0 &&
			!m.reconciled(door, m.issue) && !m.reconciled(door, m.repo.Announcement)
	})
	m.everywhere(what+": the page", func(door Door) bool {
		res, body := Get(m, m.repo.At(door))
		_, home := Get(m, door.URL)
		return res.StatusCode == http.StatusForbidden && strings.Contains(body, reason) && !strings.Contains(home, "/"+m.repo.Owner.Npub+"/tree.git")
	})
	m.everywhere(what+": git", func(door Door) bool {
		clone, failed := m.repo.Work.TryGit("ls-remote", m.repo.At(door))
		push, refused := m.repo.Work.TryGit("push", m.repo.At(door), "main")
		return failed != nil && strings.Contains(clone, "remote: "+reason) && refused != nil && strings.Contains(push, "remote: "+reason)
	})
	for _, ev := range []*nostr.Event{m.repo.Announcement, m.newIssue(m.repo, "another"), m.repo.NewState()} {
		m.Refuses(reason, ev)
	}
	if m.Second == nil {
		return
	}
	bad, fine := m.newIssue(m.repo, "bad, from the relay"), m.newIssue(m.good, "fine, from the relay, while banned: "+what)
	m.Second.Publish(bad, fine)
	m.until(what+": sync", func() bool { return m.Has(fine) })
	if m.Has(bad) {
		m.Errorf("%s: what the relay has is served", what)
	}
}

// isBack: all is as it was, and live subscriptions hear of new events.
func (m *moderation) isBack(what string) {
	m.Helper()
	m.everywhere(what+": it is back", func(door Door) bool {
		res, _ := Get(m, m.repo.At(door))
		return door.Has(m.repo.Announcement) && door.Has(m.issue) && m.reconciled(door, m.issue) && res.StatusCode == http.StatusOK
	})
	m.everywhere(what+": git is back", func(door Door) bool {
		_, err := m.repo.Work.TryGit("ls-remote", m.repo.At(door))
		return err == nil
	})
	s := m.Dial()
	defer s.Close()
	s.Send("REQ", "live", nostr.Filter{Tags: nostr.TagMap{"a": {m.repo.Owner.Address("tree")}}, LimitZero: true})
	s.Next() // EOSE
	ev := m.newIssue(m.repo, "after "+what)
	m.Other.Accepts(ev)
	for EventID(s.Next()) != ev.ID { // what the relay has and was refused may come before
	}
}

// asks sends a request of NIP-86, and checks the answer.
func (m *moderation) asks(status int, want string, auth *nostr.Event, body string) {
	m.Helper()
	req, err := http.NewRequest(http.MethodPost, m.URL, strings.NewReader(body))
	must(m, err)
	req.Header.Set("Content-Type", "application/nostr+json+rpc")
	req.Header.Set("Authorization", "Nostr "+base64.StdEncoding.EncodeToString([]byte(auth.String())))
	res, err := http.DefaultClient.Do(req)
	must(m, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != status || !strings.Contains(string(answer), want) {
		m.Errorf("%s by %s is answered %d %s, want %d %s", body, auth, res.StatusCode, answer, status, want)
	}
}

// authorise signs a request to a path of ours.
func (m *moderation) authorise(by *fixture.Person, path, method, body string) *nostr.Event {
	payload := sha256.Sum256([]byte(body))
	return by.Sign(27235, "", nostr.Tag{"u", "http://" + m.Domain + path}, nostr.Tag{"method", method}, nostr.Tag{"payload", hex.EncodeToString(payload[:])})
}

// byClient: the operator's client bans (NIP-86), and no other does.
func (m *moderation) byClient() {
	m.Helper()
	ban := fmt.Sprintf(`{"method":"banpubkey","params":["%s","by client"]}`, m.repo.Owner.PubKey)
	now := nostr.Now()
	right, get := m.authorise(m.Operator, "/", "POST", ban), m.authorise(m.Operator, "/", "GET", ban)
	forged := *right
	forged.Sig = get.Sig
	for _, wrong := range []*nostr.Event{
		m.authorise(m.guest, "/", "POST", ban), &forged, get, m.authorise(m.Operator.At(now-61), "/", "POST", ban), m.authorise(m.Operator.At(now+90), "/", "POST", ban),
		m.authorise(m.Operator, "/", "POST", ban+" "), m.authorise(m.Operator, ".example/", "POST", ban), m.authorise(m.Operator, "/x", "POST", ban), m.Operator.Sign(1, ""),
	} {
		m.asks(http.StatusUnauthorized, `"error":"`, wrong, ban)
	}
	m.asks(http.StatusOK, `{"result":true}`, right, ban)
	m.everywhere("banned by a client", func(door Door) bool { return !door.Has(m.repo.Announcement) })
	m.asks(http.StatusUnauthorized, "used before", right, ban)
	for _, c := range fixture.Rows(strings.ReplaceAll(`
		{"method":"listbannedpubkeys","params":[]}               | {"result":[{"pubkey":"OWNER","reason":"by client"}]}
		{"method":"listbannedevents"}                            | {"result":[]}
		{"method":"listallowedpubkeys"}                          | {"result":[]}
		{"method":"changerelayname","params":["A new name"]}     | {"result":true}
		{"method":"changerelayicon","params":["javascript:1"]}   | the first parameter is too long, or not a URL
		{"method":"blockip","params":["1.2.3.4"]}                | is not supported
		{"method":"banevent","params":["x"]}                     | not 64 lower-case hex digits
		{"method":"supportedmethods","params":[]}                | "listallowedpubkeys"
		{"method":"unbanpubkey","params":["OWNER"]}              | {"result":true}
		{"method":"unbanpubkey", "params":["OWNER"]}             | {"result":true}`, "OWNER", m.repo.Owner.PubKey)) {
		m.asks(http.StatusOK, c[1], m.authorise(m.Operator, "/", "POST", c[0]), c[0])
	}
	m.everywhere("a new name", func(door Door) bool {
		_, about := Get(m, door.URL, "Accept", "application/nostr+json")
		return strings.Contains(about, `"name": "A new name"`)
	})
	m.isBack("by client")
}

// reported: reports are taken about what is here, and listed with what is banned.
func (m *moderation) reported() {
	m.Helper()
	about := m.guest.Sign(1984, "look", nostr.Tag{"e", m.issue.ID, "spam"}, nostr.Tag{"p", m.guest.PubKey})
	author := m.guest.Sign(1984, "him", nostr.Tag{"p", m.repo.Owner.PubKey, "impersonation"})
	m.Accepts(about, author)
	m.Refuses("", m.guest.Sign(1984, "", nostr.Tag{"p", fixture.NewPerson().PubKey, "spam"}))
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
