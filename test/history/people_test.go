package history

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// announce publishes an announcement with these roles.
func (s *story) announce(p *fixture.Person, identifier string, roles nostr.Tags) {
	clone, relays := nostr.Tag{"clone"}, nostr.Tag{"relays", "wss://" + fixture.Domain}
	if p == s.people[wanderer] {
		relays[1] = "ws://127.0.0.1:1"
	} else {
		clone = append(clone, "https://"+fixture.Domain+"/"+p.Npub+"/"+identifier+".git")
	}
	for _, n := range s.dice.Perm(gitServers) {
		clone = append(clone, s.gits[n].URL+"/"+identifier+".git")
	}
	tags := append(nostr.Tags{{"d", identifier}, {"name", identifier}, clone, relays}, roles...)
	name := "an announcement of " + identifier
	if s.dice.IntN(25) == 0 && p != s.people[alice] {
		tags = append(tags, s.expiration(&name))
	}
	s.submit(name+" with "+s.rolesText(roles), p.At(s.at()).Sign(30617, "", tags...))
}

// rolesText names people instead of keys.
func (s *story) rolesText(roles nostr.Tags) string {
	var list []string
	for _, t := range roles {
		words := slices.Clone(t)
		for n, w := range words {
			if name := s.names[strings.ToLower(w)]; name != "" {
				words[n] = name
			}
		}
		list = append(list, strings.Join(words, " "))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// expiration ends an event within some seconds.
func (s *story) expiration(name *string) nostr.Tag {
	at := s.soon(8 * time.Second).Add(2 * time.Second)
	if gone := at.Add(4 * time.Second); gone.After(s.until) {
		s.until = gone
	}
	*name += fmt.Sprintf(" which expires at %.0f s", at.Sub(s.began).Seconds())
	return nostr.Tag{"expiration", fmt.Sprint(at.Unix())}
}

// plainRoles lists some of the others as maintainers.
func (s *story) plainRoles(p *fixture.Person) nostr.Tags {
	maintainers := nostr.Tag{"maintainers"}
	for _, other := range s.people[:stranger] {
		if other != p && s.dice.IntN(3) > 0 {
			maintainers = append(maintainers, other.PubKey)
		}
	}
	return nostr.Tags{maintainers}
}

// boundaries are the ends of roles: none, of a role that is active, of one that has ended, and what
// makes a record void.
var boundaries = [][]string{
	{}, {}, {}, {}, {}, {"100"}, {"100", "200", "300"}, {"100", "200"}, {"100", "defer"}, {"defer"}, {"-1"}, {"100", "never"}, {"1", "2", "3", "defer"},
}

// roles are random roles.
func (s *story) roles(p *fixture.Person) (roles nostr.Tags) {
	if p == s.people[stranger] {
		return nostr.Tags{pick(s, []nostr.Tag{{"maintainers", s.people[alice].PubKey}, {"M", s.people[alice].PubKey}})}
	}
	if s.dice.IntN(5) < 2 {
		return s.plainRoles(p)
	}
	record := func(letter, key string) {
		roles = append(roles, append(nostr.Tag{letter, key}, pick(s, boundaries)...))
	}
	switch roll := s.dice.IntN(20); {
	case roll < 12:
		roles = append(roles, nostr.Tag{"M", p.PubKey})
	case roll < 14:
		roles = append(roles, nostr.Tag{"m", p.PubKey})
	case roll < 15: // has left
		roles = append(roles, nostr.Tag{pick(s, []string{"M", "m"}), pick(s, []string{p.PubKey, strings.ToUpper(p.PubKey)}), "100", "defer"})
	case roll < 16:
		record("o", p.PubKey)
	case roll < 17:
		record("M", p.PubKey)
		record("M", p.PubKey)
	}
	for _, other := range s.people[:stranger] {
		if other != p && s.dice.IntN(2) == 0 {
			record(pick(s, []string{"m", "m", "m", "m", "m", "o", "M"}), other.PubKey)
		}
	}
	return append(roles, nostr.Tag{"maintainers", s.people[stranger].PubKey}) // does not count beside a role
}

// reshape has several people change their roles in a repository one after another.
func (s *story) reshape(identifier string) {
	order := s.dice.Perm(stranger)[:3]
	a, b, c := s.people[order[0]], s.people[order[1]], s.people[order[2]]
	lead := func(p *fixture.Person) nostr.Tag { return nostr.Tag{"M", p.PubKey} }
	with := func(p *fixture.Person) nostr.Tag { return nostr.Tag{"m", p.PubKey} }
	switch s.dice.IntN(5) {
	case 0:
		s.say("in %s %s, %s and %s accept each other", identifier, s.names[a.PubKey], s.names[b.PubKey], s.names[c.PubKey])
		s.announce(a, identifier, nostr.Tags{lead(a), with(b), with(c)})
		s.announce(b, identifier, nostr.Tags{lead(a), with(b), with(c)})
		s.announce(c, identifier, nostr.Tags{lead(a), with(c)})
	case 1:
		s.say("%s leads %s by way of %s to %s", s.names[c.PubKey], identifier, s.names[b.PubKey], s.names[a.PubKey])
		s.announce(c, identifier, nostr.Tags{lead(b), with(c)})
		s.announce(b, identifier, nostr.Tags{lead(a), with(b), with(c)})
		s.announce(a, identifier, nostr.Tags{lead(a), with(b)})
	case 2:
		s.say("a circle in %s", identifier)
		s.announce(a, identifier, nostr.Tags{lead(b), with(a)})
		s.announce(b, identifier, nostr.Tags{lead(a), with(b)})
	case 3:
		s.say("%s hands %s to %s", s.names[a.PubKey], identifier, s.names[b.PubKey])
		s.announce(a, identifier, nostr.Tags{lead(a), with(b)})
		s.announce(b, identifier, nostr.Tags{lead(b), with(a)})
		s.announce(a, identifier, nostr.Tags{lead(b), with(a)})
	default:
		s.say("%s names two leads of %s", s.names[a.PubKey], identifier)
		s.announce(a, identifier, nostr.Tags{lead(b), lead(c), with(a)})
	}
}

// speaker is a person who publishes about an identifier: mostly one who has authority somewhere.
func (s *story) speaker(identifier string) *fixture.Person {
	s.mu.Lock()
	defer s.mu.Unlock()
	var confirmed []*fixture.Person
	for _, owner := range s.people[:stranger] {
		e := s.m.expected(owner.PubKey, identifier)
		for _, p := range s.people[:stranger] {
			if e.people[p.PubKey] {
				confirmed = append(confirmed, p)
			}
		}
	}
	if len(confirmed) == 0 || s.dice.IntN(6) == 0 {
		return pick(s, s.people)
	}
	return pick(s, confirmed)
}

// hosted is a repository about which something is published: mostly one that is here.
func (s *story) hosted() (owner *fixture.Person, identifier string) {
	owner, identifier = pick(s, s.people[:wanderer]), s.identifier()
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 3 {
		if s.m.expected(owner.PubKey, identifier).hasData {
			break
		}
		owner, identifier = pick(s, s.people[:wanderer]), s.identifier()
	}
	return owner, identifier
}

// newState makes a state with random references.
func (s *story) newState(p *fixture.Person, identifier string, commits []string, more ...nostr.Tag) (*nostr.Event, string) {
	refs := map[string]string{"refs/heads/main": pick(s, commits)}
	head := "refs/heads/main"
	if s.dice.IntN(3) == 0 {
		dev := "refs/heads/" + pick(s, []string{"dev", "dev/one"}) // each is in the other's way
		refs[dev] = pick(s, commits)
		if s.dice.IntN(2) == 0 {
			head = dev
		}
	}
	for n, id := range s.u.tags {
		if s.dice.IntN(4) == 0 {
			refs[fmt.Sprint("refs/tags/v", n+1)] = id
		}
	}
	if s.dice.IntN(4) == 0 { // a tag at a commit that is there, or at any other
		refs["refs/tags/light"] = pick(s, []string{refs["refs/heads/main"], pick(s, commits)})
	}
	if s.dice.IntN(25) == 0 {
		clear(refs)
	}
	names := strings.Join(short(refs), ", ")
	refs["HEAD"] = "ref: " + head
	ev := p.At(s.at()).State(identifier, refs)
	if len(more) > 0 {
		ev = p.At(ev.CreatedAt).Sign(30618, "", append(ev.Tags, more...)...)
	}
	return ev, fmt.Sprintf("a state of %s (%s, HEAD %s)", identifier, names, strings.TrimPrefix(head, "refs/heads/"))
}

func (s *story) state(early bool) {
	identifier := s.identifier()
	p := s.speaker(identifier)
	commits := s.u.commits
	if s.dice.IntN(6) == 0 {
		commits = []string{s.u.never}
	}
	var more []nostr.Tag
	until := ""
	if early && s.dice.IntN(8) == 0 {
		more = append(more, s.expiration(&until))
	}
	ev, name := s.newState(p, identifier, commits, more...)
	s.submit(name+until, ev)
}

// push publishes a state and pushes it, beside the rest of the story.
func (s *story) push() {
	identifier := s.identifier()
	p := s.speaker(identifier)
	ev, name := s.newState(p, identifier, s.u.commits)
	owner := p
	if !slices.Contains(s.people[:wanderer], p) || s.dice.IntN(4) == 0 {
		owner = pick(s, s.people[:wanderer]) // to whose address a maintainer pushes
	}
	how := "--atomic"
	if s.dice.IntN(3) == 0 {
		how = "--no-atomic"
	}
	state := s.submit(name, ev)
	s.pushBeside(owner, identifier, state, func() error { return s.pushState(owner, identifier, state.Event, how) })
}

// pushBeside runs a push beside the rest of the story, and notes how it ends.
func (s *story) pushBeside(owner *fixture.Person, identifier string, ev *published, run func() error) {
	select {
	case s.slots <- struct{}{}:
	default:
		return // enough are under way
	}
	s.mu.Lock()
	at := len(s.m.pushed)
	s.m.pushed = append(s.m.pushed, push{owner: owner.PubKey, identifier: identifier, event: ev})
	s.mu.Unlock()
	s.pushes.Go(func() {
		defer func() { <-s.slots }()
		err := run()
		answer := "acknowledged"
		if err != nil {
			answer = err.Error()
		}
		s.mu.Lock()
		s.m.pushed[at].acknowledged = err == nil
		ev.stored = ev.stored || err == nil && (ev.accepted || ev.Kind == 30618)
		s.mu.Unlock()
		s.say("a push of %.6s to %s's %s: %s", ev.ID, s.names[owner.PubKey], identifier, answer)
	})
}

func (s *story) pushState(owner *fixture.Person, identifier string, state *nostr.Event, how string) error {
	url, listens := s.door()
	if !listens {
		return errors.New("the gateway is away")
	}
	address := world.At(s.t, url).Repo(owner, identifier)
	out, err := s.u.work.TryGit("ls-remote", "--heads", "--tags", "--refs", address)
	if err != nil {
		return errors.New("ls-remote fails: " + lastLine(out))
	}
	wanted, _ := refs(state)
	args := []string{"push", how, address}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		args = append(args, "+"+wanted[name]+":"+name)
	}
	for line := range strings.Lines(out) {
		_, name, is := strings.Cut(strings.TrimSpace(line), "\t")
		if is && wanted[name] == "" {
			args = append(args, ":"+name)
		}
	}
	if len(args) == 3 {
		return errors.New("there is nothing to push")
	}
	if out, err = s.u.work.TryGit(args...); err != nil {
		return errors.New("refused or failed: " + lastLine(out))
	}
	return nil
}

// lastLine is what git says that matters.
func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, line := range lines {
		if strings.Contains(line, "rejected]") || strings.HasPrefix(line, "error:") || strings.HasPrefix(line, "remote:") || strings.HasPrefix(line, "fatal:") {
			return strings.TrimSpace(line)
		}
	}
	return lines[len(lines)-1]
}

// pull publishes a pull request of a stranger, or an update of one.
func (s *story) pull(early bool) {
	owner, identifier := s.hosted()
	ev, name := s.newPull(owner, identifier, s.u.pulls, early)
	s.submit(name, ev)
}

func (s *story) newPull(owner *fixture.Person, identifier string, commits []string, early bool) (*nostr.Event, string) {
	commit := pick(s, commits)
	clone := nostr.Tag{"clone"}
	for _, n := range s.dice.Perm(gitServers) {
		clone = append(clone, s.gits[n].URL+"/"+identifier+".git")
	}
	kind, what := 1618, "a pull request"
	tags := nostr.Tags{{"c", commit}, owner.Repo(identifier), clone}
	if s.dice.IntN(4) == 0 {
		s.mu.Lock()
		for _, before := range s.m.events {
			if before.Kind == 1618 && tag(before.Event, "a") == tags[1][1] {
				kind, what = 1619, "an update of a pull request"
				tags = append(tags, nostr.Tag{"E", before.ID})
				break
			}
		}
		s.mu.Unlock()
	}
	name := fmt.Sprintf("%s for %s's %s (%.6s)", what, s.names[owner.PubKey], identifier, commit)
	if early && s.dice.IntN(5) == 0 {
		tags = append(tags, s.expiration(&name))
	}
	return s.people[stranger].At(s.at()).Sign(kind, name, tags...), name
}

// pushPull pushes the commit of a pull request, before or after its event, sometimes to a repository
// of another identifier, which the event does not name.
func (s *story) pushPull() {
	owner, identifier := s.hosted()
	ev, name := s.newPull(owner, identifier, s.u.pulls, false)
	to, toIdentifier := owner, identifier
	if s.dice.IntN(3) == 0 {
		to = pick(s, s.people[:wanderer])
		for toIdentifier == identifier {
			toIdentifier = s.identifier()
		}
	}
	first := s.dice.IntN(2) == 0
	var pr *published
	if first {
		pr = s.submit(name, ev)
	} else {
		pr = &published{Event: ev, name: name}
		s.mu.Lock()
		s.m.events = append(s.m.events, pr)
		s.mu.Unlock()
	}
	s.pushBeside(to, toIdentifier, pr, func() error { return s.pushCommit(to, toIdentifier, ev) })
	if !first {
		s.again(pr)
	}
}

func (s *story) pushCommit(owner *fixture.Person, identifier string, ev *nostr.Event) error {
	url, listens := s.door()
	if !listens {
		return errors.New("the gateway is away")
	}
	out, err := s.u.work.TryGit("push", world.At(s.t, url).Repo(owner, identifier), tag(ev, "c")+":refs/nostr/"+ev.ID)
	if err != nil {
		return errors.New("refused or failed: " + lastLine(out))
	}
	return nil
}

// remark publishes an issue, or an event that no server may keep.
func (s *story) remark() {
	owner, identifier := s.hosted()
	kind, what := 1621, "an issue"
	if s.dice.IntN(2) == 0 {
		kind, what = 20000+s.dice.IntN(100), "an ephemeral event"
	}
	s.submit(fmt.Sprintf("%s about %s's %s", what, s.names[owner.PubKey], identifier),
		pick(s, s.people).At(s.at()).Sign(kind, fmt.Sprint(s.dice.Uint64()), owner.Repo(identifier)))
}

// age makes what lies in the repositories of an identifier two days old, so that housekeeping is due
// after the next look and removes what nothing reaches.
func (s *story) age(identifier string) {
	s.say("two days pass in %s", identifier)
	s.mu.Lock()
	for i := range s.m.pushed {
		s.m.pushed[i].aged = s.m.pushed[i].aged || s.m.pushed[i].identifier == identifier
	}
	s.mu.Unlock()
	old := time.Now().Add(-48 * time.Hour)
	for _, part := range []string{"config", "last-gc", "objects/pack/*"} {
		found, err := filepath.Glob(filepath.Join(s.volume, "npub*", identifier+".git", part))
		must(s.t, err)
		for _, path := range found {
			_ = os.Chtimes(path, old, old) // it may go meanwhile
		}
	}
}

// resend publishes something again that was published before.
func (s *story) resend() {
	s.mu.Lock()
	p := pick(s, s.m.events)
	s.mu.Unlock()
	s.again(p)
}

func (s *story) changeServer() {
	server, mode := s.dice.IntN(gitServers), pick(s, modes)
	if server == 0 && s.dice.IntN(3) == 0 {
		mode = tooOften
	}
	s.say("git server %d answers %s", server, mode)
	s.gits[server].set(mode)
}

func (s *story) person(key string) *fixture.Person {
	return s.people[slices.IndexFunc(s.people, func(p *fixture.Person) bool { return p.PubKey == key })]
}

// delete deletes something that a person has published.
func (s *story) delete() {
	s.mu.Lock()
	target := pick(s, s.m.events)
	s.mu.Unlock()
	if target.Kind != 5 {
		s.deleteOne(target, s.dice.IntN(3) > 0)
	}
}

func (s *story) deleteOne(target *published, byID bool) {
	t, how := nostr.Tag{"e", target.ID}, "by id"
	if address := address(target); address != "" && !byID {
		t, how = nostr.Tag{"a", address}, "by address"
	}
	seen := s.served(target.Event)
	s.mu.Lock()
	var owners []string
	for _, p := range s.people {
		owners = append(owners, p.PubKey)
	}
	counted := target.Kind == 30618 && s.m.isCounting(target, owners)
	s.mu.Unlock()
	s.submit(fmt.Sprintf("a deletion %s of %s (%.6s), which is served: %t", how, target.name, target.ID, seen),
		s.person(target.PubKey).At(s.at()).Sign(5, "", t))
	s.mu.Lock()
	defer s.mu.Unlock()
	target.seen, target.counted = target.seen || seen, target.counted || counted
}

// deleteStates has everybody delete all states of an identifier, the oldest first.
func (s *story) deleteStates(identifier string) {
	s.mu.Lock()
	states := slices.DeleteFunc(s.m.of(30618, identifier), func(ev *published) bool { return s.m.fateOf(ev) == dead })
	s.mu.Unlock()
	for _, state := range slices.Backward(states) {
		s.deleteOne(state, true)
	}
}

// ban bans something, or lifts a ban.
func (s *story) ban() {
	if len(s.m.bans) > 0 && s.dice.IntN(5) < 3 {
		bans := slices.SortedFunc(maps.Keys(s.m.bans), func(a, b ban) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		s.moderate("unban", pick(s, bans))
		return
	}
	s.mu.Lock()
	target := pick(s, s.m.events)
	s.mu.Unlock()
	switch s.dice.IntN(6) {
	case 0:
		s.moderate("ban", ban{author: pick(s, s.people[bob:]).PubKey})
	case 1:
		s.moderate("ban", ban{identifier: s.identifier()})
	case 2:
		s.moderate("ban", ban{author: pick(s, s.people[:wanderer]).PubKey, identifier: s.identifier()})
	default:
		if target.Kind != 5 {
			s.moderate("ban", ban{event: target.ID})
		}
	}
}

// moderate runs the operator's command until it succeeds.
func (s *story) moderate(command string, b ban) {
	subject, name := b.event, fmt.Sprintf("the event %.6s", b.event)
	switch {
	case b.author != "":
		subject, name = s.person(b.author).Npub, s.names[b.author]
		if b.identifier != "" {
			subject, name = subject+"/"+b.identifier, name+"'s "+b.identifier
		}
	case b.identifier != "":
		subject, name = "identifier:"+b.identifier, b.identifier
	}
	fixture.Await(s.t, "the operator can "+command, func() bool {
		_, err := world.RunToEnd(s.t, s.volume, map[string]string{"NGIT_NATS_URL": s.nats.URL, "NGIT_DOMAIN": fixture.Domain}, command, subject)
		return err == nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m.bans, b)
	if command == "ban" {
		s.m.bans[b] = true
	}
	s.say("the operator's command is %s %s", command, name)
}
