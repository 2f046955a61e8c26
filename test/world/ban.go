package world

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
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
	signed     int // requests
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
	if p.Second != nil {
		m.relayIsBanned()
	}
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

// relayIsBanned: a banned relay is not synced from, and is again when it is not banned.
func (m *moderation) relayIsBanned() {
	m.Helper()
	m.command("ban", m.Second.URL)
	m.until("the connection to the banned relay ends", func() bool {
		story := m.command("why", m.Second.URL)
		return strings.Contains(story, "it is banned by") && strings.Contains(story, "disconnected, ")
	})
	late := m.newIssue(m.good, "from a banned relay")
	m.Second.Publish(late)
	m.command("unban", m.Second.URL)
	m.until("the relay is synced from again", func() bool { return m.Has(late) })
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

// eachMethodAnswers: supportedmethods lists what answers.
func (m *moderation) eachMethodAnswers() {
	m.Helper()
	var listed struct{ Result []string }
	must(m, json.Unmarshal([]byte(m.orders("supportedmethods")), &listed))
	if len(listed.Result) < 29 || !slices.Contains(listed.Result, "listeventsneedingmoderation") {
		m.Errorf("supported are %q", listed.Result)
	}
	for _, method := range listed.Result {
		if strings.Contains(method, "change") { // which would take what is empty
			continue
		}
		if answer := m.orders(method); strings.Contains(answer, "is not supported") ||
			strings.HasPrefix(method, "list") != strings.Contains(answer, `"result":[`) && method != "supportedmethods" {
			m.Errorf("%s is answered %s", method, answer)
		}
	}
}

// orders sends an order of the operator, and gives the answer.
func (m *moderation) orders(method string, params ...any) string {
	m.Helper()
	body, err := json.Marshal(map[string]any{"method": method, "params": append([]any{}, params...)})
	must(m, err)
	_, answer := m.post(m.authorise(m.Operator, "/", "POST", string(body)), string(body))
	return answer
}

// kindsByClient: events of a kind that is not allowed are refused, and those that are stored are
// not served.
func (m *moderation) kindsByClient() {
	m.Helper()
	const kind = 1622
	before := m.guest.Sign(kind, "before", m.good.Owner.Repo("bush"))
	m.Accepts(before)
	m.orders("disallowkind", kind)
	m.everywhere("a kind is not allowed", func(door Door) bool { return !door.Has(before) && door.Has(m.good.Announcement) })
	m.Refuses("blocked: this kind of event is not welcome here", m.guest.Sign(kind, "after", m.good.Owner.Repo("bush")))
	m.orders("allowkind", kind)
	m.everywhere("the kind is allowed", func(door Door) bool { return door.Has(before) })
}

// reportedByClient: what was reported needs moderation until the operator has banned or allowed it.
func (m *moderation) reportedByClient() {
	m.Helper()
	needs := func() bool {
		return strings.Contains(m.orders("listeventsneedingmoderation"), `{"id":"`+m.issue.ID+`","reason":"spam: look at it"}`)
	}
	lists := func(method string) bool { return strings.Contains(m.orders(method), m.issue.ID) }
	m.until("the ban of the author has ended", func() bool { return m.Has(m.issue) })
	m.Accepts(m.guest.Sign(1984, "look\nat it", nostr.Tag{"e", m.issue.ID, "spam"}, nostr.Tag{"p", m.guest.PubKey}))
	m.until("it needs moderation", needs)
	m.orders("banevent", m.issue.ID, "spam")
	m.until("banned, it does not", func() bool { return !lists("listeventsneedingmoderation") && lists("listbannedevents") })
	m.orders("unbanevent", m.issue.ID)
	m.until("it needs moderation again", needs)
	m.orders("allowevent", m.issue.ID)
	m.until("allowed, it does not", func() bool { return !lists("listeventsneedingmoderation") && lists("listallowedevents") })
	m.orders("unallowevent", m.issue.ID)
	m.until("not on the list of the allowed any more", func() bool { return needs() && !lists("listallowedevents") && m.Has(m.issue) })
}

// post sends a request of NIP-86.
func (m *moderation) post(auth *nostr.Event, body string) (status int, answer string) {
	m.Helper()
	req, err := http.NewRequest(http.MethodPost, m.URL, strings.NewReader(body))
	must(m, err)
	req.Header.Set("Content-Type", "application/nostr+json+rpc")
	req.Header.Set("Authorization", "Nostr "+base64.StdEncoding.EncodeToString([]byte(auth.String())))
	res, err := http.DefaultClient.Do(req)
	must(m, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	must(m, err)
	return res.StatusCode, string(text)
}

// asks sends a request of NIP-86, and checks the answer.
func (m *moderation) asks(status int, want string, auth *nostr.Event, body string) {
	m.Helper()
	if got, answer := m.post(auth, body); got != status || !strings.Contains(answer, want) {
		m.Errorf("%s by %s is answered %d %s, want %d %s", body, auth, got, answer, status, want)
	}
}

// authorise signs a request to a path of ours.
func (m *moderation) authorise(by *fixture.Person, path, method, body string) *nostr.Event {
	payload := sha256.Sum256([]byte(body))
	m.signed++ // an authorisation is good for one request
	return by.Sign(27235, "", nostr.Tag{"u", "http://" + m.Domain + path}, nostr.Tag{"method", method},
		nostr.Tag{"payload", hex.EncodeToString(payload[:])}, nostr.Tag{"nonce", strconv.Itoa(m.signed)})
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
		{"method":"blockip","params":["192.0.2.7","a scraper"]}  | {"result":true}
		{"method":"blockip","params":["2001:db8::1"]}            | {"result":true}
		{"method":"blockip","params":["x"]}                      | is no IP address
		{"method":"listblockedips"}                              | {"result":[{"ip":"192.0.2.7","reason":"a scraper"},{"ip":"2001:db8::/64","reason":""}]}
		{"method":"unblockip","params":["192.0.2.7"]}            | {"result":true}
		{"method":"unblockip","params":["2001:db8::/64"]}        | {"result":true}
		{"method":"listblockedips"}                              | {"result":[]}
		{"method":"disallowkind","params":[9999]}                | {"result":true}
		{"method":"disallowkind","params":[30617]}               | kind 30617 cannot be banned
		{"method":"disallowkind","params":["9999"]}              | is no kind of events
		{"method":"listdisallowedkinds"}                         | {"result":[9999]}
		{"method":"allowkind","params":[9999]}                   | {"result":true}
		{"method":"listdisallowedkinds"}                         | {"result":[]}
		{"method":"listallowedkinds"}                            | {"result":[9999]}
		{"method":"banrelay","params":["wss://Relay.example/"]}  | {"result":true}
		{"method":"listbannedrelays"}                            | {"result":[{"reason":"","url":"wss://relay.example"}]}
		{"method":"unbanrelay","params":["wss://relay.example"]} | {"result":true}
		{"method":"bangithost","params":["git.example","malware"]} | {"result":true}
		{"method":"listbannedgithosts"}                          | {"result":[{"host":"git.example","reason":"malware"}]}
		{"method":"unbangithost","params":["git.example"]}       | {"result":true}
		{"method":"banrole","params":["x"]}                      | is not supported
		{"method":"banevent","params":["x"]}                     | not 64 lower-case hex digits
		{"method":"supportedmethods","params":[]}                | "listallowedpubkeys"
		{"method":"unbanpubkey","params":["OWNER"]}              | {"result":true}
		{"method":"unbanpubkey", "params":["OWNER"]}             | {"result":true}`, "OWNER", m.repo.Owner.PubKey)) {
		if strings.Contains(c[0], `"method":"list`) { // the replica that answers may hear of an order a moment later
			m.until(c[0]+" is answered by "+c[1], func() bool {
				got, answer := m.post(m.authorise(m.Operator, "/", "POST", c[0]), c[0])
				return got == http.StatusOK && strings.Contains(answer, c[1])
			})
			continue
		}
		m.asks(http.StatusOK, c[1], m.authorise(m.Operator, "/", "POST", c[0]), c[0])
	}
	m.eachMethodAnswers()
	m.kindsByClient()
	m.reportedByClient()
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
