// Package authority works out who speaks for a repository. Maintainership is reciprocal: a key that
// an announcement names is invited, and has no rights, until it names a confirmed maintainer in an
// announcement of its own.
//
// A coordinate is the address of one owner's announcement. All questions are about the coordinates
// of one identifier. Anybody may announce an identifier and list anybody, so a question follows
// what announcements list, never who lists a key: its work depends on the announcements that its
// own chain reaches, and not on how many strangers announce the same identifier. The functions are
// pure. What counts as an announcement, accepted or held, is for the caller to say.
package authority

import (
	"iter"
	"slices"

	"tendril.dev/lib/nostr"
)

const (
	// MaxConfirmed bounds the confirmed maintainers of a coordinate, nearest to the root first, then
	// in the order in which they are listed.
	MaxConfirmed = 256
	// MaxLooks bounds the announcements that one question looks at. Beyond it a key is not
	// confirmed.
	MaxLooks = 4096
	// MaxFollowing bounds the announcements of owners who name a lead that [Speaks] looks at: these
	// are mostly strangers, and all of them are coordinates of the same root.
	MaxFollowing = 64
)

// Announcements finds the announcements of one identifier that count: the newest of each author,
// accepted or held.
type Announcements interface {
	// By returns the announcement of an author, or nil.
	By(author string) *nostr.Announcement
	// LedBy yields the announcements of others whose only lead is this key. There may be others among
	// them. It yields nil for one that it has looked at in vain, so that this counts too.
	LedBy(lead string) iter.Seq[*nostr.Announcement]
}

// Group is who speaks for a coordinate.
type Group struct {
	Owner string
	// Root is where the confirmed maintainers begin: the owner, or the lead at the end of the path
	// that begins at the owner. Without a root no one has authority, and NoAuthority says why.
	Root        string
	NoAuthority NoAuthority
	// Path are the keys that lead from the owner to another root, the owner first.
	Path []string
	// Confirmed are the maintainers, the root first.
	Confirmed []string
	// Invited are the keys that a confirmed maintainer lists, that are not confirmed and have not
	// left.
	Invited []string
	// Looked are the authors whose announcements decided this, also of those that are missing. While
	// none of them changes, the group stays as it is.
	Looked []string
}

// Has reports whether a key is a confirmed maintainer.
func (g Group) Has(key string) bool { return slices.Contains(g.Confirmed, key) }

// MayChange reports whether the group may become another one with a new announcement of an author,
// which lists these keys. Who is listed by strangers, and lists none of them, changes nothing there.
func (g Group) MayChange(author string, listed []string) bool {
	_, looked := slices.BinarySearch(g.Looked, author)
	return looked && (g.Root == "" || g.Has(author) || slices.Contains(g.Path, author) ||
		slices.ContainsFunc(listed, g.Has))
}

// Of works out who speaks for the coordinate of an owner.
func Of(all Announcements, owner string) Group {
	w := walk{all: all}
	return w.group(owner)
}

// Coordinate is a repository of the identifier, and where its confirmed maintainers begin.
type Coordinate struct{ Owner, Root string }

// Speaks reports whether a key is a confirmed maintainer of some coordinate that counts; nil: all
// count.
func Speaks(all Announcements, key string, counts func(Coordinate) bool) bool {
	for c := range CoordinatesWithin(all, key, MaxFollowing) {
		if counts == nil || counts(c) {
			return true
		}
	}
	return false
}

// Deciding are the authors whose announcements decide for which coordinates a key speaks, the key
// first, at most so many. Some of these announcements may be missing.
func Deciding(all Announcements, key string, most int) (authors []string) {
	w := walk{all: all}
	w.coordinates(key, func(Coordinate) bool { return true })
	in := map[string]bool{}
	for _, author := range w.looked {
		if !in[author] && len(authors) < most {
			in[author], authors = true, append(authors, author)
		}
	}
	return authors
}

// Coordinates yields the coordinates for which a key is confirmed: roots, the nearest first, and
// after each root the owners whose lead it is.
//
// A confirmed maintainer lists one who was confirmed before, and so on to the root. So what the key
// and those whom it lists name leads to every root, and strangers who list the key are not met.
func Coordinates(all Announcements, key string) iter.Seq[Coordinate] {
	return CoordinatesWithin(all, key, MaxLooks)
}

// CoordinatesWithin is Coordinates with a bound on the announcements that are looked at of owners
// who name a lead.
func CoordinatesWithin(all Announcements, key string, most int) iter.Seq[Coordinate] {
	return func(yield func(Coordinate) bool) {
		w := walk{all: all, following: most}
		w.coordinates(key, yield)
	}
}

func (w *walk) coordinates(key string, yield func(Coordinate) bool) {
	seen, queue := map[string]bool{key: true}, []string{key}
	for ; len(queue) > 0; queue = queue[1:] {
		a := w.by(queue[0])
		if a == nil {
			continue
		}
		if isRoot(a) {
			if g := w.group(queue[0]); g.Has(key) && !w.follow(a, g.Confirmed, yield) {
				return
			}
		}
		for _, next := range a.Listed {
			if !seen[next] {
				seen[next], queue = true, append(queue, next)
			}
		}
	}
}

// follow yields a root's coordinate and those of the owners whose lead it is, on any path: the
// confirmed ones first, because any number of strangers may name the lead. Who does not lead itself
// leads no one's repository.
func (w *walk) follow(by *nostr.Announcement, confirmed []string, yield func(Coordinate) bool) (more bool) {
	root := by.Ref.PubKey
	if !yield(Coordinate{Owner: root, Root: root}) {
		return false
	}
	if len(by.Leads) == 0 {
		return true
	}
	seen, queue := map[string]bool{root: true}, []string{root}
	for _, owner := range confirmed {
		if to, _, _ := w.root(owner); to != root || seen[owner] {
			continue
		}
		if seen[owner], queue = true, append(queue, owner); !yield(Coordinate{Owner: owner, Root: root}) {
			return false
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for a := range w.all.LedBy(queue[0]) {
			if w.following--; w.following < 0 {
				return true // there may be other roots
			}
			if a == nil {
				continue
			}
			owner := a.Ref.PubKey
			if lead, is := LeadOf(a); !is || lead != queue[0] || seen[owner] {
				continue
			}
			if seen[owner], queue = true, append(queue, owner); !yield(Coordinate{Owner: owner, Root: root}) {
				return false
			}
		}
	}
	return true
}

// Sharing are the owners whose repositories share objects with that of an owner: those with the
// same root who are confirmed there. An owner who only points to a lead shares with no other.
func Sharing(all Announcements, owner string) (owners []string) {
	w := walk{all: all}
	g := w.group(owner)
	if !g.Has(owner) {
		return nil
	}
	for _, key := range g.Confirmed {
		if root, _, _ := w.root(key); root == g.Root {
			owners = append(owners, key)
		}
	}
	return owners
}

// With are the announcements as they are when another one is accepted.
func With(all Announcements, a *nostr.Announcement) Announcements { return overlay{all, a} }

type overlay struct {
	Announcements
	added *nostr.Announcement
}

func (o overlay) By(author string) *nostr.Announcement {
	if author == o.added.Ref.PubKey {
		return o.added
	}
	return o.Announcements.By(author)
}

func (o overlay) LedBy(lead string) iter.Seq[*nostr.Announcement] {
	return func(yield func(*nostr.Announcement) bool) {
		if by, is := LeadOf(o.added); is && by == lead && !yield(o.added) {
			return
		}
		for a := range o.Announcements.LedBy(lead) {
			if (a == nil || a.Ref.PubKey != o.added.Ref.PubKey) && !yield(a) {
				return
			}
		}
	}
}

// LeadOf returns the only lead of an announcement, if that is another key than its author's.
func LeadOf(a *nostr.Announcement) (lead string, is bool) {
	if len(a.Leads) == 1 && a.Leads[0] != a.Ref.PubKey {
		return a.Leads[0], true
	}
	return "", false
}

// isRoot reports whether the author is the root of the own coordinate.
func isRoot(a *nostr.Announcement) bool {
	if len(a.Leads) == 0 {
		return a.Active
	}
	return len(a.Leads) == 1 && a.Leads[0] == a.Ref.PubKey
}

// walk is one question.
type walk struct {
	all       Announcements
	looks     int      // announcements that were looked at
	looked    []string // their authors
	following int      // announcements that may be looked at of owners who name a lead
}

// by looks at an announcement; nil: there is none, or too many were looked at.
func (w *walk) by(author string) *nostr.Announcement {
	if w.looks++; w.looks > MaxLooks {
		return nil
	}
	w.looked = append(w.looked, author)
	return w.all.By(author)
}

// root follows the leads from an owner, over the keys of a path.
func (w *walk) root(owner string) (root string, path []string, noAuthority NoAuthority) {
	seen := map[string]bool{}
	for at, before := owner, ""; ; {
		a := w.by(at)
		switch {
		case w.looks > MaxLooks:
			return "", path, NoAuthority{tooLong, at, ""}
		case a == nil && before == "":
			return "", path, NoAuthority{notAnnounced, at, ""}
		case a == nil:
			return "", path, NoAuthority{leadMissing, at, before}
		case isRoot(a) && (before == "" || len(a.Leads) == 1):
			return at, path, NoAuthority{}
		case len(a.Leads) > 1:
			return "", path, NoAuthority{twoLeads, at, before}
		case len(a.Leads) == 0 && before == "":
			return "", path, NoAuthority{ownerLeft, at, ""}
		case len(a.Leads) == 0:
			return "", path, NoAuthority{noLead, at, before}
		}
		seen[at], path = true, append(path, at)
		if before, at = at, a.Leads[0]; seen[at] {
			return "", path, NoAuthority{circle, at, before}
		}
	}
}

// group finds the confirmed maintainers of a coordinate. Each key is looked up once.
func (w *walk) group(owner string) (g Group) {
	begin := len(w.looked)
	defer func() {
		g.Looked = slices.Sorted(slices.Values(w.looked[begin:]))
		g.Looked = slices.Compact(g.Looked)
	}()
	g.Owner = owner
	if g.Root, g.Path, g.NoAuthority = w.root(owner); g.Root == "" {
		return g
	}
	root := w.by(g.Root)
	if root == nil { // the path took all looks but this one
		g.Root, g.NoAuthority = "", NoAuthority{tooLong, g.Root, ""}
		return g
	}
	var listed []string // in the order in which they were met
	met := map[string]*nostr.Announcement{g.Root: root}
	confirmed := map[string]bool{}
	waiting := map[string][]string{} // who lists a key that may still be confirmed
	confirm := func(key string) {
		for queue := []string{key}; len(queue) > 0; queue = queue[1:] {
			if key := queue[0]; !confirmed[key] && len(g.Confirmed) < MaxConfirmed {
				confirmed[key] = true
				g.Confirmed, queue = append(g.Confirmed, key), append(queue, waiting[key]...)
			}
		}
	}
	confirm(g.Root)
	for next := 0; next < len(g.Confirmed); next++ {
		for _, key := range met[g.Confirmed[next]].Listed {
			if _, again := met[key]; again {
				continue
			}
			a := w.by(key)
			met[key], listed = a, append(listed, key)
			switch {
			case a == nil || !a.Active:
			case slices.ContainsFunc(a.Listed, func(other string) bool { return confirmed[other] }):
				confirm(key)
			default:
				for _, other := range a.Listed {
					waiting[other] = append(waiting[other], key)
				}
			}
		}
	}
	for _, key := range listed {
		if a := met[key]; !confirmed[key] && (a == nil || a.Active) {
			g.Invited = append(g.Invited, key)
		}
	}
	return g
}
