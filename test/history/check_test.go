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
		// What was refused may be taken now: what it missed has come.
		s.republish(func(p *published) bool { return !p.accepted })
	}
	for _, w := range wrong {
		s.t.Error(w)
	}
	for _, ev := range s.m.events {
		if strings.Contains(strings.Join(wrong, "\n"), ev.ID[:6]) {
			out, _ := world.RunToEnd(s.t, s.volume, map[string]string{"NGIT_NATS_URL": s.nats.URL}, "why", ev.ID)
			s.say("tendril why %.6s: %s", ev.ID, out)
		}
	}
	acknowledged := 0
	for _, p := range s.m.pushed {
		if p.acknowledged {
			acknowledged++
		}
	}
	s.say("%d events, %d pushes, %d of them acknowledged; in line after %.1f s; %d faults",
		len(s.m.events), len(s.m.pushed), acknowledged, time.Since(began).Seconds(), len(wrong))
	if len(wrong) == 0 {
		s.whole()
	}
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
	served := map[string]bool{}
	events, err := s.fetch(nostr.Filter{Kinds: []int{30617, 30618, 1618}, Limit: 5000})
	if err != nil {
		return append(wrong, err.Error())
	}
	for _, ev := range events {
		served[ev.ID] = true
	}
	for _, ev := range s.m.events {
		if ev.Kind == 5 {
			continue
		}
		if f := s.m.fateOf(ev); f == dead && served[ev.ID] {
			wrong = append(wrong, fmt.Sprintf("%s (%.6s) is served, but its author has deleted it or a newer version", ev.name, ev.ID))
		}
		if s.mustBeServed(ev) && !served[ev.ID] {
			wrong = append(wrong, fmt.Sprintf("%s (%.6s) of %s is not served, but its data is there", ev.name, ev.ID, s.names[ev.PubKey]))
		}
	}
	return wrong
}

// mustBeServed reports whether nothing is missing for an event.
func (s *story) mustBeServed(ev *published) bool {
	if s.m.fateOf(ev) != alive || !ev.accepted {
		return false
	}
	identifier := tag(ev.Event, "d")
	switch ev.Kind {
	case 30617:
		a, f := s.m.announcement(ev.PubKey, identifier)
		return a == ev && f == alive && s.m.expected(ev.PubKey, identifier).certain
	case 30618:
		e := s.m.expected(ev.PubKey, identifier)
		if !e.certain || e.hosted != alive {
			return false
		}
		// The last one is certain, unless a newer one of its author has taken its place.
		first := slices.IndexFunc(e.states, func(s *published) bool { return s.PubKey == ev.PubKey })
		return first == len(e.states)-1 && e.states[first] == ev
	case 1618:
		return len(s.namedFor(ev)) > 0
	}
	return false
}

// namedFor are the owners in whose repositories a pull request's commit must be named: it is for a
// repository that is served for certain.
func (s *story) namedFor(ev *published) (owners []string) {
	for _, ref := range all(ev.Event, "a") {
		part := strings.SplitN(ref, ":", 3)
		if e := s.m.expected(part[1], part[2]); e.hosted == alive && e.certain && s.m.u.served[tag(ev.Event, "c")] {
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
		if exists && !s.explained(folder) {
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
		if ev.Kind == 1618 && s.m.fateOf(ev) == alive && slices.Contains(s.namedFor(ev), owner.PubKey) &&
			tag(ev.Event, "a") == "30617:"+owner.PubKey+":"+identifier && !strings.Contains(out, tag(ev.Event, "c")+"\trefs/nostr/"+ev.ID) {
			say("the commit of %s (%.6s) is not named", ev.name, ev.ID)
		}
	}
	if len(e.states) == 0 || e.hosted != alive {
		return wrong
	}
	var may []string
	for _, state := range e.states {
		wanted, wantedHead := refs(state.Event)
		if maps.Equal(got, wanted) && (head == wantedHead || wanted[wantedHead] == "") {
			return wrong
		}
		may = append(may, fmt.Sprintf("%s by %s (%.6s)", state.name, s.names[state.PubKey], state.ID))
	}
	if e.certain || len(got) > 0 {
		say("its references are %v with HEAD %s; they must be those of %s", short(got), head, strings.Join(may, ", or "))
	}
	return wrong
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
		case s.m.fateOf(ev) == dead:
			return "its event is deleted"
		case tag(ev.Event, "c") != commit:
			return "its event names another commit"
		default:
			return ""
		}
	}
	return "there is no such event"
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
