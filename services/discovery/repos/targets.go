package repos

import (
	"maps"
	"math"
	"slices"

	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/wanted"
)

const (
	// maxAuthors is how many maintainers of a held announcement are asked for, nearest first:
	// whoever writes it says how many there are.
	maxAuthors = 50
	// maxLooks bounds the walk to them.
	maxLooks = 1000
	// maxHeldPerRelay is how many held repositories one relay is asked for the states of. Relays
	// that many list are listed by strangers too.
	maxHeldPerRelay = 200
)

// want is what one repository needs, and of which relays.
type want struct {
	ref    string
	repo   wanted.Repo
	relays []nip34.RelayURL
	held   *announcement // nil: it is served
	owner  string
}

func (w *want) served() bool { return w.held == nil }

// listedAs reports whether the same relays list both, in the same way.
func (w *want) listedAs(o *want) bool {
	return w.served() == o.served() && slices.Equal(w.relays, o.relays)
}

// same reports whether the same is wanted of the same relays; both are listed in the same way.
func (w *want) same(o *want) bool {
	return slices.Equal(w.repo.Authors, o.repo.Authors) && wanted.SameList(w.repo.Roots, o.repo.Roots)
}

// inverted is relay → what is wanted of it, kept in step with repository → relays.
type inverted struct {
	limits    Limits
	bootstrap map[string]nip34.RelayURL // by identity (nip34.RelayURL.Key)
	wants     map[string]*want          // by reference
	relays    map[string]*relay         // by identity
	served    int                       // relays that a served repository lists, bootstrap relays left out
	targets   map[string]wanted.Target  // by identity
	refused   int                       // relays beyond the limits
}

// relay is who lists a relay, and how.
type relay struct {
	named   map[string]nip34.RelayURL // by reference
	served  int                       // of them
	refused bool
}

func newInverted(domain string, bootstrap []nip34.RelayURL, limits Limits) inverted {
	v := inverted{
		limits: limits, bootstrap: map[string]nip34.RelayURL{}, wants: map[string]*want{}, relays: map[string]*relay{}, targets: map[string]wanted.Target{},
	}
	for _, url := range bootstrap {
		if !url.OnDomain(domain) {
			v.bootstrap[url.Key()] = url
			v.targets[url.Key()] = wanted.Target{URL: string(url), Bootstrap: true, Repos: map[string]wanted.Repo{}}
		}
	}
	return v
}

// Targets is what is wanted of every relay, by the relay's identity (nip34.RelayURL.Key). Of relays
// that nothing has changed for since the last call it gives the same value, map included.
func (b *Book) Targets() map[string]wanted.Target {
	touched := map[string]bool{}
	for identifier := range b.dirty {
		g := b.groups[identifier]
		wants := g.work()
		for ref, old := range g.wants {
			switch w := wants[ref]; {
			case w == nil || !w.listedAs(old):
				b.unlist(old, touched)
			case w.same(old):
				wants[ref] = old
			default:
				b.replace(w, touched)
			}
		}
		for ref, w := range wants {
			if b.wants[ref] != w {
				b.list(w, touched)
			}
			w.repo = w.repo.Summed()
		}
		g.wants = wants
		if len(g.accepted)+len(g.held) == 0 {
			delete(b.groups, identifier)
		}
	}
	clear(b.dirty)
	b.admit(touched)
	for key := range touched {
		b.rebuild(key)
	}
	return maps.Clone(b.targets)
}

// Refused is how many relays are no targets because the limits are reached.
func (b *Book) Refused() int { return b.refused }

// work works out what the repositories of an identifier need.
func (g *group) work() map[string]*want {
	wants := map[string]*want{}
	var known map[string]*announcement
	var trusted map[string]bool
	for owner, repo := range g.accepted {
		if !repo.hosted {
			if trusted == nil {
				known = g.known()
				_, trusted = maintainers(g.hosts(), known, math.MaxInt, math.MaxInt)
			}
			if !trusted[owner] {
				continue
			}
		}
		ref := repo.ref.String()
		wants[ref] = &want{ref: ref, owner: owner, relays: repo.relays, repo: wanted.Repo{Level: proto.LevelFull, Roots: repo.list()}}
	}
	for owner, a := range g.waiting() {
		if known == nil {
			known = g.known()
		}
		authors, _ := maintainers([]string{owner}, known, maxAuthors, maxLooks)
		slices.Sort(authors)
		ref := a.ref.String()
		wants[ref] = &want{ref: ref, owner: owner, relays: a.relays, held: a, repo: wanted.Repo{Level: proto.LevelStateOnly, Authors: authors}}
	}
	return wants
}

// hosts are the owners of the repositories that are served and hosted or archived here.
func (g *group) hosts() (owners []string) {
	for owner, repo := range g.accepted {
		if repo.hosted {
			owners = append(owners, owner)
		}
	}
	return owners
}

func (b *Book) list(w *want, touched map[string]bool) {
	b.wants[w.ref] = w
	for _, url := range w.relays {
		key := url.Key()
		r := b.relays[key]
		if r == nil {
			r = &relay{named: map[string]nip34.RelayURL{}}
			b.relays[key] = r
		}
		r.named[w.ref] = url
		if w.served() {
			b.count(key, r, 1)
		}
		touched[key] = true
	}
}

// replace notes that a repository needs something else of the same relays.
func (b *Book) replace(w *want, touched map[string]bool) {
	b.wants[w.ref] = w
	for _, url := range w.relays {
		touched[url.Key()] = true
	}
}

func (b *Book) unlist(w *want, touched map[string]bool) {
	delete(b.wants, w.ref)
	for _, url := range w.relays {
		key := url.Key()
		r := b.relays[key]
		delete(r.named, w.ref)
		if w.served() {
			b.count(key, r, -1)
		}
		if len(r.named) == 0 {
			delete(b.relays, key)
			if r.refused {
				b.refused--
			}
		}
		touched[key] = true
	}
}

// count notes how many served repositories list a relay.
func (b *Book) count(key string, r *relay, change int) {
	before := r.served > 0
	r.served += change
	if _, ours := b.bootstrap[key]; ours || before == (r.served > 0) {
		return
	}
	b.inverted.served += change
}

// rebuild makes the target of a relay anew.
func (b *Book) rebuild(key string) {
	t := wanted.Target{Repos: map[string]wanted.Repo{}}
	if url, ours := b.bootstrap[key]; ours {
		t.URL, t.Bootstrap = string(url), true
	}
	if r := b.relays[key]; r != nil && !r.refused {
		var held []*want
		for ref, url := range r.named {
			if w := b.wants[ref]; w.served() {
				t.Repos[ref] = w.repo
			} else {
				held = append(held, w)
			}
			// wss rather than ws, whichever repository came first; the operator's word stands.
			if t.URL == "" || !t.Bootstrap && url.Secure() {
				t.URL = string(url)
			}
		}
		for _, w := range fairly(held, maxHeldPerRelay) {
			t.Repos[w.ref] = w.repo
		}
	}
	if t.Exists() {
		b.targets[key] = t
	} else {
		delete(b.targets, key)
	}
}
