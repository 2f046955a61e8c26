package history

import (
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

// check waits until everything is what the model says, and tells what is not.
func (s *story) check() {
	began := time.Now()
	var wrong []string
	for deadline := began.Add(quiet); ; time.Sleep(500 * time.Millisecond) {
		if wrong = s.wrong(); len(wrong) == 0 || time.Now().After(deadline) {
			break
		}
		// What was refused may be taken now: what it missed has come. The wanderer's announcements may
		// have been dropped with those that listed the wanderer.
		s.republish(func(p *published) bool {
			return !p.accepted || p.Kind == 30617 && p.PubKey == s.people[wanderer].PubKey
		})
	}
	for _, w := range wrong {
		s.t.Error(w)
	}
	s.explain(wrong)
	acknowledged := 0
	for _, p := range s.m.pushed {
		if p.acknowledged {
			acknowledged++
		}
	}
	s.say("%d events, %d pushes, %d of them acknowledged, %d bans; in line after %.1f s; %d faults",
		len(s.m.events), len(s.m.pushed), acknowledged, len(s.m.bans), time.Since(began).Seconds(), len(wrong))
	if len(wrong) == 0 {
		s.whole()
	}
}

// explain tells what the program says of the events that faults name, and what each worker does at
// this moment: a fault may be work that never ends.
func (s *story) explain(faults []string) {
	if len(faults) == 0 {
		return
	}
	for _, worker := range s.workers {
		file := filepath.Join(os.TempDir(), fmt.Sprintf("tendril-history-%d-%s.goroutines", os.Getpid(), worker.name))
		if err := os.WriteFile(file, fmt.Append(nil, worker.Goroutines()), 0o600); err == nil {
			s.say("what %s does is in %s", worker.name, file)
		}
	}
	for _, ev := range s.m.events {
		if strings.Contains(strings.Join(faults, "\n"), ev.ID[:6]) {
			out, _ := world.RunToEnd(s.t, s.volume, map[string]string{"NGIT_NATS_URL": s.nats.URL, "NGIT_DOMAIN": fixture.Domain}, "why", ev.ID)
			s.say("tendril why %.6s: %s", ev.ID, out)
		}
	}
}

// kinds are those of a history but deletions.
var kinds = []int{1618, 1619, 1621, 30617, 30618}

// servedNow are the ids of all that is served now.
func (s *story) servedNow() (map[string]bool, error) {
	served := map[string]bool{}
	for _, kind := range append([]int{5}, kinds...) { // an answer has 500 events at most
		events, err := s.fetch(nostr.Filter{Kinds: []int{kind}, Limit: 500})
		if err != nil {
			return nil, err
		}
		for _, ev := range events {
			served[ev.ID] = true
		}
	}
	for _, ev := range s.m.events {
		if isEphemeral(ev) && s.served(ev.Event) {
			served[ev.ID] = true
		}
	}
	return served, nil
}

func isEphemeral(ev *published) bool { return ev.Kind >= 20000 && ev.Kind < 30000 }

// lost are the events that were stored, or whose push was acknowledged, and are not there.
func (s *story) lost() (lost []string) {
	served, err := s.servedNow()
	if err != nil {
		return []string{err.Error()}
	}
	for _, ev := range s.m.events {
		if ev.stored && !served[ev.ID] && s.mustBeServed(ev) {
			lost = append(lost, fmt.Sprintf("%s (%.6s) of %s was stored, and is lost", ev.name, ev.ID, s.names[ev.PubKey]))
		}
	}
	return lost
}

// wrong says what is not as the model has it.
func (s *story) wrong() (wrong []string) {
	url, listens := s.door()
	if !listens {
		return []string{"the gateway is away"}
	}
	door := world.At(s.t, url)
	for n := range identifiers {
		identifier := fmt.Sprint("repo", n)
		for _, owner := range s.people {
			wrong = append(wrong, s.wrongRepository(door, owner, identifier)...)
		}
	}
	served, err := s.servedNow()
	if err != nil {
		return append(wrong, err.Error())
	}
	for _, ev := range s.m.events {
		if why := s.mustNotBeServed(ev); why != "" && served[ev.ID] {
			wrong = append(wrong, fmt.Sprintf("%s (%.6s) of %s is served, but %s", ev.name, ev.ID, s.names[ev.PubKey], why))
		}
		if s.mustBeServed(ev) && !served[ev.ID] {
			wrong = append(wrong, fmt.Sprintf("%s (%.6s) of %s is not served, but nothing is missing", ev.name, ev.ID, s.names[ev.PubKey]))
		}
	}
	return wrong
}

// mustNotBeServed says why an event must not be served, or "".
func (s *story) mustNotBeServed(ev *published) string {
	switch {
	case isEphemeral(ev):
		return "it is ephemeral"
	case ev.Kind == 5 && s.m.banned(ev):
		return "it is banned"
	case ev.Kind == 5:
		return ""
	case s.m.deleted(ev):
		return "its author has deleted it"
	case s.m.banned(ev):
		return "it is banned"
	case expires(ev):
		return "it has expired"
	case s.m.fateOf(ev) == dead:
		return "its author has deleted a newer version"
	}
	if ev.Kind == 30617 || ev.Kind == 1621 {
		return ""
	}
	identifier := tag(ev.Event, "d")
	if identifier == "" {
		identifier = strings.SplitN(tag(ev.Event, "a"), ":", 3)[2]
	}
	for _, owner := range s.people {
		if s.m.data(ev, owner.PubKey, identifier) != dead {
			return ""
		}
	}
	return "its data is nowhere"
}

// mustBeServed reports whether nothing is missing for an event.
func (s *story) mustBeServed(ev *published) bool {
	if s.m.fateOf(ev) != alive {
		return false
	}
	identifier := tag(ev.Event, "d")
	switch ev.Kind {
	case 30617:
		e := s.m.expected(ev.PubKey, identifier)
		possibilities, complete := s.m.possibilities(identifier)
		counts := complete && !slices.ContainsFunc(possibilities, func(p possible) bool { return p[ev.PubKey] != ev })
		return counts && e.hosted == alive && e.hasData
	case 30618:
		return s.mustServeState(ev, identifier)
	case 1618, 1619, 1621:
		return len(s.namedFor(ev)) > 0
	}
	return false
}

// mustServeState: a state is accepted if its author is confirmed in a repository that has its data, and
// no newer one of this author may be.
func (s *story) mustServeState(ev *published, identifier string) bool {
	for _, newer := range s.m.of(30618, identifier) {
		if newer == ev {
			break
		}
		if newer.PubKey == ev.PubKey && s.m.fateOf(newer) != dead &&
			slices.ContainsFunc(s.people, func(p *fixture.Person) bool { return s.m.data(newer, p.PubKey, identifier) != dead }) {
			return false
		}
	}
	return slices.ContainsFunc(s.people, func(owner *fixture.Person) bool {
		e := s.m.expected(owner.PubKey, identifier)
		return e.hosted == alive && e.hasData && e.people[ev.PubKey] && s.m.data(ev, owner.PubKey, identifier) == alive
	})
}

// namedFor are the owners in whose repositories a pull request's commit must be named: it is for a
// repository that is served for certain. An issue only needs such a one.
func (s *story) namedFor(ev *published) (owners []string) {
	for _, ref := range all(ev.Event, "a") {
		part := strings.SplitN(ref, ":", 3)
		e := s.m.expected(part[1], part[2])
		if e.hosted == alive && e.hasData && s.m.data(ev, part[1], part[2]) == alive {
			owners = append(owners, part[1])
		}
	}
	return owners
}

// wrongRepository says what is wrong with one repository.
func (s *story) wrongRepository(door world.Door, owner *fixture.Person, identifier string) (wrong []string) {
	who := s.names[owner.PubKey] + "'s " + identifier
	say := func(format string, args ...any) { wrong = append(wrong, who+": "+fmt.Sprintf(format, args...)) }
	e := s.m.expected(owner.PubKey, identifier)
	folder := filepath.Join(s.volume, owner.Npub, identifier+".git")
	_, err := os.Stat(folder)
	exists := err == nil
	out, err := world.TryGit(s.t, s.volume, "ls-remote", "--symref", door.Repo(owner, identifier))
	switch {
	case e.hosted == alive && err != nil:
		say("it is hosted, but git says: %s", lastLine(out))
		return wrong
	case e.hosted == dead && err == nil:
		say("it is not hosted, but served:\n%s", out)
		return wrong
	case e.hosted == dead:
		if exists && !e.banned && !s.bannedAnnouncement(owner, identifier) && !s.explained(folder) {
			say("its folder is there without an event or a note")
		}
		return wrong
	case err != nil:
		return nil
	}
	got, head := map[string]string{}, ""
	for line := range strings.Lines(out) {
		value, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		switch {
		case strings.HasPrefix(value, "ref: ") && name == "HEAD":
			head = strings.TrimPrefix(value, "ref: ")
		case strings.HasPrefix(name, "refs/nostr/"):
			if why := s.unexplained(strings.TrimPrefix(name, "refs/nostr/"), value, owner.PubKey, identifier); why != "" {
				say("%s: %s", name, why)
			}
		case name != "HEAD" && !strings.HasSuffix(name, "^{}"):
			got[name] = value
		}
	}
	for _, ev := range s.m.events {
		if (ev.Kind == 1618 || ev.Kind == 1619) && s.m.fateOf(ev) == alive && slices.Contains(s.namedFor(ev), owner.PubKey) &&
			tag(ev.Event, "a") == "30617:"+owner.PubKey+":"+identifier && !strings.Contains(out, tag(ev.Event, "c")+"\trefs/nostr/"+ev.ID) {
			say("the commit of %s (%.6s) is not named", ev.name, ev.ID)
		}
	}
	if e.hosted != alive {
		return wrong
	}
	if s.m.emptied(owner.PubKey, identifier) && len(got) > 0 {
		say("its references are %v, but the last state was deleted", short(got))
	}
	if e.free { // what was there before may have stayed
		e.states = s.m.of(30618, identifier)
	}
	var may []string
	for _, state := range e.states {
		wanted, wantedHead := refs(state.Event)
		if maps.Equal(got, wanted) && (head == wantedHead || wanted[wantedHead] == "") {
			return wrong
		}
		may = append(may, fmt.Sprintf("%s by %s (%.6s)", state.name, s.names[state.PubKey], state.ID))
	}
	if (!e.free || len(got) > 0) && !(e.free && s.m.cutOff(owner.PubKey, identifier, got)) {
		say("its references are %v with HEAD %s; they must be those of %s", short(got), head, strings.Join(may, ", or "))
	}
	return wrong
}

// bannedAnnouncement reports whether an announcement of a repository is banned: its folder stays, since
// a ban can be lifted.
func (s *story) bannedAnnouncement(owner *fixture.Person, identifier string) bool {
	return slices.ContainsFunc(s.m.of(30617, identifier), func(ev *published) bool { return ev.PubKey == owner.PubKey && s.m.banned(ev) })
}

func short(refs map[string]string) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		list = append(list, fmt.Sprintf("%s %.6s", strings.TrimPrefix(strings.TrimPrefix(name, "refs/heads/"), "refs/tags/"), refs[name]))
	}
	return list
}

// explained reports whether a note says why a folder is there that is not hosted.
func (s *story) explained(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "ended"))
	return err == nil
}

// unexplained says why a reference below refs/nostr/ must not be there, or "".
func (s *story) unexplained(id, commit, owner, identifier string) string {
	for _, ev := range s.m.events {
		switch {
		case ev.ID != id:
		case !ev.accepted && tag(ev.Event, "c") == commit:
			return "" // no process here knows the event: the reference waits for it, for half an hour
		case s.m.fateOf(ev) == dead && !ev.seen && s.waits(id, owner, identifier):
			return "" // it was pushed before its event came, or after the event had gone: to the server that is the same
		case s.m.fateOf(ev) == dead:
			return "its event is deleted, banned or expired"
		case strings.SplitN(tag(ev.Event, "a"), ":", 3)[2] != identifier:
			return "its event is for another repository"
		case tag(ev.Event, "c") != commit:
			return "its event names another commit"
		default:
			return ""
		}
	}
	return "there is no such event"
}

// waits reports whether it is noted that a reference was pushed without its event, which ends the
// reference within half an hour.
func (s *story) waits(id, owner, identifier string) bool {
	noted, err := os.ReadFile(filepath.Join(s.volume, s.person(owner).Npub, identifier+".git", "waiting"))
	return err == nil && strings.Contains(string(noted), id)
}

// whole checks that every repository passes fsck, and that those which are served can be cloned.
func (s *story) whole() {
	folders, err := filepath.Glob(filepath.Join(s.volume, "npub*", "*.git"))
	must(s.t, err)
	for _, folder := range folders {
		if out, err := world.TryGit(s.t, folder, "fsck", "--full", "--strict", "--no-dangling"); err != nil {
			s.t.Errorf("%s: %v\n%s", folder, err, out)
		}
		if locks, err := filepath.Glob(filepath.Join(folder, "*.lock")); err != nil || len(locks) > 0 {
			s.t.Errorf("locks were left: %v", locks)
		}
	}
	url, _ := s.door()
	door := world.At(s.t, url)
	for _, owner := range s.people {
		for n := range identifiers {
			identifier := fmt.Sprint("repo", n)
			e := s.m.expected(owner.PubKey, identifier)
			if e.hosted != alive || !e.certain {
				continue
			}
			copied := filepath.Join(s.t.TempDir(), "copy")
			if out, err := world.TryGit(s.t, s.volume, "clone", "-q", "--mirror", door.Repo(owner, identifier), copied); err != nil {
				s.t.Errorf("%s's %s cannot be cloned: %v\n%s", s.names[owner.PubKey], identifier, err, out)
				continue
			}
			if out, err := world.TryGit(s.t, copied, "fsck", "--full"); err != nil {
				s.t.Errorf("the clone of %s's %s: %v\n%s", s.names[owner.PubKey], identifier, err, out)
			}
		}
	}
}
