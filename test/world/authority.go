package world

import (
	"strings"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// roles: who speaks for a repository changes with what its people announce, and with a ban. The
// references follow at once, in both directions, without a new state or push; where no one has
// authority they stay, and a push is told why. The maintainers' own repositories are elsewhere.
func roles(p *Place) {
	ann, bob, carol, work := p.Person(), p.Person(), p.Person(), NewWorkTree(p)
	const name = "roles"
	remote, at := p.Repo(ann, name), nostr.Now()
	tag := func(letter string, who *fixture.Person, boundaries ...string) nostr.Tag {
		return append(nostr.Tag{letter, who.PubKey}, boundaries...)
	}
	says := func(who *fixture.Person, roles ...nostr.Tag) {
		p.Helper()
		at++
		tags := nostr.Tags{{"d", name}, {"clone", "https://elsewhere.example/x.git"}, {"relays", "wss://elsewhere.example"}}
		if who == ann {
			tags = ann.Announce(name).Tags
		}
		p.Accepts(who.At(at).Sign(nostr.KindAnnouncement, "", append(tags, roles...)...))
	}
	follows := func(why, commit string) {
		p.Helper()
		await(p, why, func() bool { return strings.HasPrefix(work.Git("ls-remote", remote, "refs/heads/main"), commit) })
	}

	// A reference moves before the state is accepted. Who loses authority in between has no state.
	served := func(commit string, state *nostr.Event) {
		p.Helper()
		follows("the state counts", commit)
		p.Serves(state)
	}

	older := work.Refs()["refs/heads/main"]
	p.Holds(ann.At(at).Announce(name), ann.At(at).State(name, work.Refs()))
	work.Git("push", "-q", remote, "main")
	says(ann, nostr.Tag{"maintainers", bob.PubKey})
	says(bob, nostr.Tag{"maintainers", ann.PubKey})
	newer := work.Commit("by bob")
	state := bob.At(at+1).State(name, work.Refs())
	p.Holds(state)
	work.Git("push", "-q", remote, "main")
	served(newer, state)
	says(ann)
	follows("the owner removes the maintainer", older)
	says(ann, nostr.Tag{"maintainers", bob.PubKey})
	follows("the owner lists the maintainer again", newer)
	says(bob, tag("m", bob, "1", "2"), tag("m", ann))
	follows("the maintainer leaves", older)
	says(bob, nostr.Tag{"maintainers", ann.PubKey})
	follows("the maintainer comes back", newer)
	if p.Tool != nil {
		for _, step := range []struct{ command, commit string }{{"ban", older}, {"unban", newer}} {
			if out, err := p.Tool(step.command, bob.Npub); err != nil {
				p.Fatalf("%s: %s%v", step.command, out, err)
			}
			follows(step.command+" of the maintainer", step.commit)
		}
	}

	says(ann, tag("M", ann), tag("m", bob, "1", "never")) // a void record names no key
	follows("the maintainer's record is void", older)
	says(ann, tag("M", ann), tag("m", bob, "1"))
	follows("the record is right", newer)

	says(ann, tag("M", bob))
	says(bob, tag("M", carol), tag("m", bob))
	work.Git("reset", "-q", "--hard", older)
	work.Commit("by no maintainer")
	work.Fails("the announcement of the lead "+carol.Npub+" is missing", "push", remote, "+main")
	says(carol, tag("M", carol), tag("m", bob))
	follows("a path of three leads to a root that confirms the second", newer)
	state = carol.At(at+1).State(name, map[string]string{"refs/heads/main": older})
	p.Accepts(state)
	served(older, state)
	for _, step := range []struct {
		who    *fixture.Person
		roles  []nostr.Tag
		reason string
	}{
		{carol, []nostr.Tag{tag("o", carol)}, "who names no lead"},
		{carol, []nostr.Tag{tag("M", ann)}, "the leads form a circle"},
		{ann, []nostr.Tag{tag("M", ann), tag("M", bob)}, "names two leads"},
		{ann, []nostr.Tag{tag("o", ann)}, "has left"},
	} {
		says(step.who, step.roles...)
		work.Fails(step.reason, "push", remote, "+main")
		follows("where no one has authority the references stay", older)
	}
	if p.Tool == nil {
		return
	}
	for want, command := range map[string][]string{
		"authority     no one has authority: the owner " + ann.Npub + " has left; ": {"repo", "show", ann.Npub + "/" + name},
		"no one has authority over ": {"status"},
	} {
		await(p, want, func() bool {
			out, err := p.Tool(command...)
			return err == nil && strings.Contains(out, want)
		})
	}
}
