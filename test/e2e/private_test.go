package e2e

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// enter opens a socket to a private service at an address and proves who one is.
func enter(t *testing.T, address string, who *fixture.Person) *world.Socket {
	t.Helper()
	s := world.DialFrom(t, address, "")
	hello := s.Next()
	if hello[0] != "AUTH" {
		t.Fatalf("the first word is %v", hello)
	}
	challenge, _ := hello[1].(string)
	s.Send("AUTH", who.Sign(22242, "", nostr.Tag{"relay", address}, nostr.Tag{"challenge", challenge}))
	if ok := s.Next(); ok[0] != "OK" || ok[2] != true {
		t.Fatalf("the proof is answered with %v", ok)
	}
	return s
}

// submits sends events that must be taken.
func submits(t *testing.T, s *world.Socket, events ...*nostr.Event) {
	t.Helper()
	for _, ev := range events {
		if ok, message := s.Submit(ev); !ok {
			t.Fatalf("kind %d: %s", ev.Kind, message)
		}
	}
}

// counted asks how many events there are of an id.
func counted(s *world.Socket, ev *nostr.Event) any {
	s.Send("COUNT", "n", map[string]any{"ids": []string{ev.ID}})
	return s.Next()[2].(map[string]any)["count"]
}

// proxied puts a proxy before what is behind a balancer, as nginx stands before a path of a domain: it
// takes nothing away from a request. Each request goes to the next gateway.
func proxied(t *testing.T) (behind *world.Balancer, domain string) {
	behind = world.NewBalancer(t)
	to, err := url.Parse(behind.URL)
	must(t, err)
	proxy := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Transport: &http.Transport{DisableKeepAlives: true},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
		}})
	t.Cleanup(proxy.Close)
	return behind, strings.TrimPrefix(proxy.URL, "http://")
}

// TestPrivateServices: two private services mirror each other; one lies below a path, behind a proxy,
// and has two gateways. A member reads and pushes with git and the credential helper of
// docs/private.md; others learn nothing; who is removed is out at once, at each gateway; a request to
// vanish counts where it names the path; and only an order opens what was private.
func TestPrivateServices(t *testing.T) {
	t.Parallel()
	member, guest, keys := fixture.NewPerson(), fixture.NewPerson(), []*fixture.Person{fixture.NewPerson(), fixture.NewPerson()}
	var fronts []*world.Balancer
	var domains, addresses []string
	bases := []string{"", "/grasp"}
	for _, base := range bases {
		front, domain := proxied(t)
		fronts, domains, addresses = append(fronts, front), append(domains, domain), append(addresses, domain+base)
	}
	settings := func(i int) map[string]string {
		return map[string]string{
			"NGIT_DOMAIN": domains[i], "NGIT_BASE_PATH": bases[i], "NGIT_PRIVATE_MODE": "true", "NGIT_PRIVATE_MEMBERS": member.Npub + "," + guest.Npub,
			"NGIT_RELAY_OWNER_NSEC": keys[i].Secret, "NGIT_PRIVATE_PEERS": "ws://" + addresses[1-i] + "=" + keys[1-i].Npub,
		}
	}
	var both []*world.Tendril
	for i, front := range fronts {
		p := world.Start(t, settings(i))
		front.Add(p.URL)
		both = append(both, p)
	}
	further := world.StartReplica(t, "gateway", both[1].NATS, filepath.Join(both[1].Dir, "data/git"), settings(1))
	doors := []string{both[1].URL, further.Door().URL}
	further.AwaitReady()
	// through lets requests to the second service through one of its gateways alone.
	through := func(door string) {
		for _, other := range doors {
			fronts[1].Remove(other)
		}
		fronts[1].Add(door)
	}
	work := world.NewWorkTree(t)
	path, missing := nostr.RepositoryURLPath(member.Npub, "secret"), nostr.RepositoryURLPath(member.Npub, "missing")
	remotes := []string{"http://" + addresses[0] + path, "http://" + addresses[1] + path}
	announcement := member.Sign(nostr.KindAnnouncement, "", nostr.Tag{"d", "secret"}, nostr.Tag{"private", "true"},
		append(nostr.Tag{"clone"}, remotes...), nostr.Tag{"relays", "ws://" + addresses[0], "ws://" + addresses[1]})
	state := member.State("secret", work.Refs())
	submits(t, enter(t, "ws://"+addresses[0], member), announcement, state)
	keyFile := filepath.Join(t.TempDir(), "key")
	must(t, os.WriteFile(keyFile, []byte(member.Secret), 0o600))
	helped := func(args ...string) []string {
		helper := "!TENDRIL_KEY_FILE='" + keyFile + "' '" + world.Binary(t) + "' credential"
		return append([]string{"-c", "credential.helper=", "-c", "credential.helper=" + helper, "-c", "credential.useHttpPath=true"}, args...)
	}
	work.Git(helped("push", "-q", remotes[0], "main")...)

	var open []*world.Socket // of the member, at each gateway
	for _, door := range doors {
		through(door)
		second := enter(t, "ws://"+addresses[1], member)
		open = append(open, second)
		await(t, "the other service has the state", func() bool { return counted(second, state) == 1.0 })
		copied := t.TempDir()
		world.Git(t, copied, helped("clone", "-q", remotes[1], "copy")...)
		if head := strings.TrimSpace(world.Git(t, filepath.Join(copied, "copy"), "rev-parse", "HEAD")); head != work.Refs()["refs/heads/main"] {
			t.Errorf("the clone is at %s", head)
		}
	}
	for _, remote := range append(remotes, "http://"+addresses[0]+missing, "http://"+addresses[1]+missing) {
		out, err := world.TryGit(t, t.TempDir(), "-c", "credential.helper=", "ls-remote", remote)
		if err == nil || !strings.Contains(out, "could not read Username") {
			t.Errorf("a stranger is told %v: %s", err, out)
		}
	}
	work.Fails("rejected", helped("push", "-q", remotes[0], "main:refs/heads/other")...) // no state allows that

	about := []*nostr.Event{guest.Sign(1621, "one", member.Repo("secret")), guest.Sign(1621, "another", member.Repo("secret"))}
	vanish := func(address string) *nostr.Event {
		return guest.Sign(nostr.KindVanish, "", nostr.Tag{"relay", "ws://" + address})
	}
	inside := enter(t, "ws://"+addresses[1], guest)
	submits(t, inside, about[0], vanish(domains[1]), about[1])
	await(t, "what came later is here", func() bool { return counted(inside, about[1]) == 1.0 })
	if counted(inside, about[0]) != 1.0 {
		t.Error("a request that names the domain without its path counts")
	}
	submits(t, inside, vanish(addresses[1]))
	await(t, "one that names the path counts", func() bool { return counted(inside, about[0]) == 0.0 })

	if out, err := both[1].Tool("member", "remove", member.Npub); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i, door := range doors {
		for _, err := open[i].TryNext(); err == nil; _, err = open[i].TryNext() {
		}
		through(door)
		if out, err := world.TryGit(t, t.TempDir(), helped("ls-remote", remotes[1])...); err == nil {
			t.Errorf("a removed member is told %s", out)
		}
	}
	world.Git(t, t.TempDir(), helped("ls-remote", remotes[0])...)

	must(t, both[0].Stop())
	public := world.Settings()
	public["NGIT_DOMAIN"] = domains[0]
	out, err := world.RunToEnd(t, both[0].Dir, public, "up")
	if err == nil || !strings.Contains(out, "tendril make-public --everything") {
		t.Errorf("a start without the mode: %v, %s", err, out)
	}
	if out, err := both[1].Tool("make-public", "--everything"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, further.Stop(), both[1].Stop())
	both[1].Change(map[string]string{"NGIT_PRIVATE_MODE": "", "NGIT_PRIVATE_MEMBERS": "", "NGIT_PRIVATE_PEERS": ""})
	both[1].Restart()
	through(both[1].URL)
	world.CloneIs(t, remotes[1], work.Refs()["refs/heads/main"])
}
