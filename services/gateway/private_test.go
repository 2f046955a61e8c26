package gateway

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

const origin = "https://git.example.com"

// private is a private gateway with two members, a repository of the first of them, and a count of
// what was asked about repositories behind the door.
type private struct {
	*system
	member, removed, stranger *fixture.Person
	behind                    atomic.Int32
	base                      string // path
}

func startPrivate(t *testing.T, base string) *private {
	p := &private{member: fixture.NewPerson(), removed: fixture.NewPerson(), stranger: fixture.NewPerson(), base: base}
	p.system = start(t, "--private-mode", "--private-members="+p.member.Npub+","+p.removed.Npub, "--base-path="+base)
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.behind.Add(1)
		io.WriteString(w, "git data")
	}))
	t.Cleanup(worker.Close)
	p.shards.at(strings.TrimPrefix(worker.URL, "http://"))
	asked, err := p.Bus.Conn.Subscribe(proto.RepoSubject("*", "*"), func(*nats.Msg) { p.behind.Add(1) })
	must(t, err)
	t.Cleanup(func() { asked.Unsubscribe() })
	manage, err := p.Bus.Conn.Subscribe(proto.SubjectManage, func(m *nats.Msg) {
		m.Respond([]byte(`{"status":401,"body":"c2VjcmV0"}`))
	})
	must(t, err)
	t.Cleanup(func() { manage.Unsubscribe() })
	p.store(t, p.announced("secret"), p.member.Sign(nostr.KindState, "", nostr.Tag{"d", "secret"},
		nostr.Tag{"refs/heads/main", strings.Repeat("1", 40)}, nostr.Tag{"HEAD", "ref: refs/heads/main"}))
	return p
}

func (p *private) announced(identifier string) *nostr.Event {
	return p.member.Sign(nostr.KindAnnouncement, "what no stranger may read", nostr.Tag{"d", identifier}, nostr.Tag{"relays", "wss://git.example.com" + p.base},
		nostr.Tag{"clone", origin + p.base + "/" + p.member.Npub + "/" + identifier + ".git"})
}

// remove takes a member out, and waits until the gateway knows.
func (p *private) remove(t *testing.T, who *fixture.Person) {
	t.Helper()
	must(t, bans.PutMember(t.Context(), p.Bus.JS, who.PubKey, true, "test"))
	eventually(t, "a member is removed", func() bool { return !p.Bans.Circle(p.Settings.Private).Has(who.PubKey) })
}

// proof is the event of a proof for a path, as base64, with what edit changes of it.
func proof(by *fixture.Person, path string, edit func(*nostr.Event)) string {
	ev := nostr.Event{Kind: 27235, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"u", origin + path}, {"method", "GET"}}}
	if edit != nil {
		edit(&ev)
	}
	if err := ev.Sign(by.Secret); err != nil {
		panic(err)
	}
	data, err := ev.MarshalJSON()
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(data)
}

// dump is an answer, byte for byte but for its time.
func (p *private) dump(t *testing.T, method, path, authorization, agent string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.addr+p.base+path, nil)
	must(t, err)
	r.Header.Set("User-Agent", agent)
	if method == "MANAGE" {
		r.Method = "POST"
		r.Header.Set("Content-Type", managementType)
	}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	resp.Header.Del("Date")
	var headers strings.Builder
	must(t, resp.Header.Write(&headers)) // in order of their names
	return resp.StatusCode, fmt.Sprintf("HTTP/1.1 %s\r\n%s\r\n%s", resp.Status, headers.String(), body)
}

// addresses are all that a service has. NPUB and ID are those of a repository.
var addresses = strings.Fields(`/NPUB /NPUB/ /NPUB/ID.git /NPUB/ID.git/ /NPUB/ID /NPUB/ID.git?branch=main /NPUB/ID.git?branch=main&path=x
	/NPUB/ID.git?branch=main&path=x&raw=1 /NPUB/ID.git?branch=main&log=0 /NPUB/ID.git?tag=v1 /NPUB/ID.git/info/refs
	/NPUB/ID.git/info/refs?service=git-upload-pack /NPUB/ID.git/info/refs?service=git-receive-pack /NPUB/ID.git/HEAD
	/NPUB/ID.git//info/refs?service=git-upload-pack /NPUB/ID.git/git-upload-pack /NPUB/ID.git/git-receive-pack /NPUB/ID/info/refs
	/NPUB/ID/git-upload-pack /NPUB/%49%44.git /NPUB/ID.git/info/lfs/objects/batch /NPUB/ID?go-get=1 /NPUB/ID.git/x?go-get=1
	/prs/NPUB/ID.git /prs/NPUB/ID.git/info/refs?service=git-upload-pack //NPUB/ID.git /./NPUB/ID.git /x/../NPUB/ID.git
	/NPUB/ID.git/archive/v1.tar.gz /NPUB/ID.git?issues /NPUB/ID.git?feed /atom.xml /metrics /debug/pprof/ /loglevel /feed /ID /ID.git /ID.git/info/refs /nothing /NPUB/ID.git/objects/info/packs /NPUB/ID.git/config`)

// open are the addresses that anyone may read.
var open = strings.Fields(`/ /?go-get=1 /icon.png /favicon.ico /robots.txt /healthz /readyz
	/.well-known/nostr.json /.well-known/nostr.json?path=NPUB/ID.git /.well-known/nostr.json?path=NPUB/ID`)

// TestPrivateAddresses: a client that is no member gets the same empty answer at every address
// and by every method, for a repository that is here and for one that is not, and nothing is looked
// up for that.
func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"", "/our/grasp"} {
		t.Run(base, func(t *testing.T) {
			t.Parallel()
			startPrivate(t, base).leaksNothing(t)
		})
	}
}

func (p *private) leaksNothing(t *testing.T) {
	p.remove(t, p.removed)
	root := p.base + "/" + p.member.Npub + "/secret.git"
	here := strings.NewReplacer("NPUB", p.member.Npub, "ID", "secret")
	missing := strings.NewReplacer("NPUB", p.stranger.Npub, "ID", "nothing")
	authorizations := map[string]string{
		"without a proof":  "",
		"a removed member": "Nostr " + proof(p.removed, root, nil),
		"a stranger":       "Nostr " + proof(p.stranger, root, nil),
		"by password":      "Basic " + base64.StdEncoding.EncodeToString([]byte("x:"+proof(p.removed, root, nil))),
		"an old proof":     "Nostr " + proof(p.member, root, func(ev *nostr.Event) { ev.CreatedAt -= 62 }),
		"an early proof":   "Nostr " + proof(p.member, root, func(ev *nostr.Event) { ev.CreatedAt += 3600 }),
		"another address":  "Nostr " + proof(p.member, root+"/info/refs", nil),
		"another method": "Nostr " + proof(p.member, root, func(ev *nostr.Event) {
			ev.Tags[1] = nostr.Tag{"method", "POST"}
		}),
		"two addresses": "Nostr " + proof(p.member, root, func(ev *nostr.Event) { ev.Tags = append(ev.Tags, nostr.Tag{"u", origin + "/"}) }),
		"two methods":   "Nostr " + proof(p.member, root, func(ev *nostr.Event) { ev.Tags = append(ev.Tags, nostr.Tag{"method", "GET"}) }),
		"another kind":  "Nostr " + proof(p.member, root, func(ev *nostr.Event) { ev.Kind = 22242 }),
		"no event":      "Nostr AAAA",
		"no base64":     "Nostr {}",
		"another way":   "Bearer " + proof(p.member, root, nil),
		"too much":      "Nostr " + proof(p.member, root, func(ev *nostr.Event) { ev.Content = strings.Repeat("x", 9000) }),
	}
	for _, agent := range []string{"git/2.39.5", "git/2.0 (libgit2 1.9)", "Mozilla/5.0"} {
		_, refusal := p.dump(t, "GET", "/nothing", "", agent)
		if !strings.HasPrefix(refusal, "HTTP/1.1 401 ") || !strings.Contains(refusal, "Content-Length: 0\r\n") ||
			!strings.Contains(refusal, `Nostr realm="git.example.com", method="GET"`) ||
			strings.Contains(refusal, "Basic realm") != (agent == "git/2.39.5") {
			t.Errorf("%s is told %s", agent, refusal)
		}
		for who, authorization := range authorizations {
			if agent != "git/2.39.5" && who != "without a proof" {
				continue
			}
			methods := []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PROPFIND", "MANAGE"}
			if who != "without a proof" && who != "a removed member" || p.base != "" {
				methods = []string{"GET"}
			}
			for _, method := range methods {
				for _, address := range addresses {
					for _, names := range []*strings.Replacer{here, missing} {
						path := names.Replace(address)
						if _, got := p.dump(t, method, path, authorization, agent); got != refusal {
							t.Errorf("%s: %s %s\n%s\nwant\n%s", who, method, path, got, refusal)
						}
					}
				}
			}
		}
	}
	if _, got := p.dump(t, "MANAGE", "/", "", "x"); !strings.HasPrefix(got, "HTTP/1.1 401 ") || !strings.HasSuffix(got, "\r\n\r\n") {
		t.Errorf("who manages the service without a proof is told %s", got)
	}
	for _, address := range slices.Concat(addresses, open) {
		_, one := p.dump(t, "OPTIONS", here.Replace(address), "", "x")
		if _, other := p.dump(t, "OPTIONS", missing.Replace(address), "", "x"); one != other || !strings.HasPrefix(one, "HTTP/1.1 204 ") {
			t.Errorf("OPTIONS %s: %s", address, one)
		}
	}
	for _, address := range open {
		_, one := p.dump(t, "GET", here.Replace(address), "", "x")
		_, other := p.dump(t, "GET", missing.Replace(address), "", "x")
		if one != other || strings.Contains(one, p.member.Npub) || strings.Contains(one, p.member.PubKey) || strings.Contains(one, "secret.git") ||
			strings.Contains(one, " 401 ") {
			t.Errorf("%s\n%s\nother than\n%s", address, one, other)
		}
	}
	if n := p.behind.Load(); n != 0 {
		t.Errorf("%d questions went behind the door", n)
	}
}

// TestPrivateMember: a member sees everything, by a header or a password, and may do so twice with one
// proof. The metrics are not on the public port even then.
func TestPrivateMember(t *testing.T) {
	t.Parallel()
	p := startPrivate(t, "")
	root := "/" + p.member.Npub + "/secret.git"
	signed := proof(p.member, root, nil)
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("anything:"+signed))
	for _, authorization := range []string{"Nostr " + signed, "Nostr " + signed, basic, "nostr  " + signed} {
		for _, ask := range []string{"GET /info/refs?service=git-upload-pack", "POST /git-upload-pack", "POST /git-receive-pack"} {
			method, path, _ := strings.Cut(ask, " ")
			if status, got := p.dump(t, method, root+path, authorization, "git/2.39.5"); status != 200 || !strings.Contains(got, "git data") ||
				!strings.Contains(got, "Cache-Control: no-store\r\n") {
				t.Errorf("%s: %s", ask, got)
			}
		}
	}
	if _, got := p.dump(t, "GET", root, "Nostr "+signed, "x"); strings.Contains(got, " 401 ") {
		t.Errorf("the page of a repository: %s", got)
	}
	everywhere := "Nostr " + proof(p.member, "/", nil)
	if _, got := p.dump(t, "GET", "/", everywhere, "x"); !strings.Contains(got, p.member.Npub+"/secret.git") {
		t.Errorf("the front page for a member: %s", got)
	}
	for path, want := range map[string]int{"/" + p.member.Npub: 200, "/metrics": 404, "/nothing": 404, root: 401} {
		if status, _ := p.dump(t, "GET", path, everywhere, "x"); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	for _, target := range []string{"//" + p.addr + root + "/info/refs", "/" + p.member.Npub + "/a/b.git/info/refs"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.addr, nil)
		must(t, err)
		r.URL.Opaque = target // a whole URL, as proxies are asked; and an identifier that is not encoded
		r.Header.Set("Authorization", everywhere)
		resp, err := http.DefaultTransport.RoundTrip(r)
		must(t, err)
		if resp.Body.Close(); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("the proof for the front page at %s: %s", target, resp.Status)
		}
	}
	if _, got := p.dump(t, "GET", "/.well-known/nostr.json?path="+p.member.Npub+"/secret.git", everywhere, "x"); strings.Contains(got, "30617") {
		t.Errorf("names of repositories: %s", got)
	}
	p.remove(t, p.member)
	if status, _ := p.dump(t, "GET", root, "Nostr "+signed, "x"); status != 401 {
		t.Errorf("who is no member any more: %d", status)
	}
	must(t, bans.PutMember(t.Context(), p.Bus.JS, p.stranger.PubKey, false, "test"))
	eventually(t, "a new member may read", func() bool {
		status, _ := p.dump(t, "POST", root+"/git-upload-pack", "Nostr "+proof(p.stranger, root, nil), "x")
		return status == 200
	})
	must(t, bans.Put(t.Context(), p.Bus.JS, bans.Subject{PubKey: p.stranger.PubKey}, proto.Ban{At: time.Now()}))
	eventually(t, "a banned member may not", func() bool {
		status, _ := p.dump(t, "POST", root+"/git-upload-pack", "Nostr "+proof(p.stranger, root, nil), "x")
		return status == 401
	})
}

// said are all kinds of messages, and how those are answered who have not proved that they are
// members.
func (p *private) said(t *testing.T) map[string]string {
	ev, err := p.member.Sign(1, "hello", nostr.Tag{"a", "30617:" + p.member.PubKey + ":secret"}).MarshalJSON()
	must(t, err)
	return map[string]string{
		fmt.Sprintf(`["EVENT",%s]`, ev):                            `false,"auth-required: `,
		`["EVENT",{"id":"x"}]`:                                     `["NOTICE","auth-required: `,
		`["REQ","a",{"kinds":[30617]}]`:                            `["CLOSED","a","auth-required: `,
		`["REQ","a",{"kinds":"x"}]`:                                `["CLOSED","a","auth-required: `,
		`["REQ","a",{"ids":["` + p.announced("secret").ID + `"]}]`: `["CLOSED","a","auth-required: `,
		`["COUNT","a",{}]`:                                         `["CLOSED","a","auth-required: `,
		`["NEG-OPEN","a",{},"61000000"]`:                           `["NEG-ERR","a","auth-required: `,
		`["NEG-MSG","a","61000000"]`:                               `["NOTICE","auth-required: `,
		`["NEG-CLOSE","a"]`:                                        `["NOTICE","auth-required: `,
		`["CLOSE","a"]`:                                            `["NOTICE","auth-required: `,
		`["SOMETHING","a"]`:                                        `["NOTICE","auth-required: `,
		`no message`:                                               `["NOTICE","auth-required: `,
	}
}

// TestPrivateRelay: no client reads or writes before the proof of a member, and not after its
// membership has ended.
func TestPrivateRelay(t *testing.T) {
	t.Parallel()
	p := startPrivate(t, "")
	gone := fixture.NewPerson()
	p.remove(t, gone)
	for who, key := range map[string]*fixture.Person{"a stranger": p.stranger, "who was removed before": gone} {
		c := p.dial(t)
		challenge := challenged(t, c)
		for say, want := range p.said(t) {
			c.say("%s", say)
			if got, err := c.hear(); err != nil || !strings.Contains(got, want) {
				t.Errorf("%s is answered with %s, %v", say, got, err)
			}
		}
		c.say(`["AUTH",%s]`, inAnswer(t, challenge, key, 0))
		for say := range p.said(t) {
			c.ws.Write(t.Context(), websocket.MessageText, []byte(say)) // what is said right behind it gets no answer
		}
		if got := c.want(`["OK",`); !strings.Contains(got, `false,"restricted: `) {
			t.Errorf("%s is told %s", who, got)
		}
		if got, err := c.hear(); err == nil && !strings.Contains(got, "auth-required: ") && !strings.Contains(got, "restricted: ") {
			t.Errorf("%s hears %s", who, got)
		}
		c.closed()
	}

	c := p.dial(t)
	challenge := challenged(t, c)
	for range mostBadAnswers {
		if got := c.hears(`["OK",`, `["AUTH",%s]`, inAnswer(t, challenge, p.member, -130)); !strings.Contains(got, "false,") {
			t.Errorf("an old answer: %s", got)
		}
	}
	c.closed()

	c = p.dial(t)
	challenge = challenged(t, c)
	if got := c.hears(`["OK",`, `["AUTH",%s]`, inAnswer(t, challenge, p.removed, -90)); !strings.Contains(got, "true,") {
		t.Fatalf("a member is told %s", got)
	}
	c.hears(`["EVENT","a",`, `["REQ","a",{"kinds":[30617]}]`)
	c.want(`["EOSE","a"]`)
	p.store(t, p.announced("second"))
	c.want(`["EVENT","a",`)
	c.hears(`["COUNT","b",{"count":2}]`, `["COUNT","b",{"kinds":[30617]}]`)
	p.remove(t, p.removed)
	if got, err := c.hear(); err == nil {
		t.Errorf("who is no member any more hears %s", got)
	}
}

const mostBadAnswers = 3

// challenged hears the challenge, which comes at once.
func challenged(t *testing.T, c *client) string {
	t.Helper()
	got := c.want(`["AUTH","`)
	return strings.TrimSuffix(strings.TrimPrefix(got, `["AUTH","`), `"]`)
}

// inAnswer is the answer to a challenge, so many seconds from now.
func inAnswer(t *testing.T, challenge string, by *fixture.Person, later int64) []byte {
	t.Helper()
	ev := nostr.Event{Kind: 22242, CreatedAt: nostr.Now() + nostr.Timestamp(later), Tags: nostr.Tags{{"relay", "wss://git.example.com"}, {"challenge", challenge}}}
	must(t, ev.Sign(by.Secret))
	data, err := ev.MarshalJSON()
	must(t, err)
	return data
}
