package smallpack

import (
	"bytes"
	"fmt"
	"strings"
)

// Walk returns every object that the tips reach, the tips among them, each once. Every link was
// followed, so that all of it is in the packs of the set. ErrNotSmall: something is not there, or
// not what a link says that it is; git knows whether it is somewhere else.
func (s *Set) Walk(tips []ID) ([]ID, error) {
	s.inflated = 0
	w := walk{set: s, seen: map[ID]Kind{}}
	for _, id := range tips {
		kind, found, err := s.Kind(id)
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, fmt.Errorf("%w: %s is not in it", ErrNotSmall, id)
		}
		if err := w.reach(link{id, kind}); err != nil {
			return nil, err
		}
	}
	for len(w.todo) > 0 {
		next := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		p, offset, _ := s.find(next.to)
		kind, content, err := s.content(p, offset, 0)
		if err != nil {
			return nil, err
		}
		links, err := linksOf(kind, content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", next.to, err)
		}
		for _, l := range links {
			if err := w.reach(l); err != nil {
				return nil, err
			}
		}
	}
	return w.order, nil
}

// link is what one object says of another.
type link struct {
	to   ID
	kind Kind
}

type walk struct {
	set   *Set
	seen  map[ID]Kind
	order []ID
	todo  []link // whose links were not followed yet
}

// reach notes an object that the walk has come to.
func (w *walk) reach(l link) error {
	kind, seen := w.seen[l.to]
	if !seen {
		var err error
		if kind, _, err = w.set.Kind(l.to); err != nil {
			return err
		}
	}
	if kind != l.kind { // 0: it is not there
		return fmt.Errorf("%w: there is no %s %s", ErrNotSmall, l.kind, l.to)
	}
	if seen {
		return nil
	}
	w.seen[l.to] = kind
	w.order = append(w.order, l.to)
	if kind != Blob {
		w.todo = append(w.todo, l)
	}
	return nil
}

// linksOf reads what an object links to. Commits of other repositories, which trees name as
// submodules, are no links.
func linksOf(kind Kind, content []byte) ([]link, error) {
	switch kind {
	case Commit:
		return commitLinks(string(content))
	case Tree:
		return treeLinks(content)
	case Tag:
		return tagLinks(string(content))
	}
	return nil, nil
}

// header takes a line "<name> <value>" from the front of a commit or tag.
func header(content, name string) (value, rest string, found bool) {
	rest, found = strings.CutPrefix(content, name+" ")
	if !found {
		return "", content, false
	}
	value, rest, found = strings.Cut(rest, "\n")
	return value, rest, found
}

func commitLinks(content string) (links []link, err error) {
	odd := fmt.Errorf("%w: not a commit as git writes it", ErrNotSmall)
	value, rest, found := header(content, "tree")
	id, ok := ParseID(value)
	if !found || !ok {
		return nil, odd
	}
	links = append(links, link{id, Tree})
	for {
		if value, rest, found = header(rest, "parent"); !found {
			break
		}
		if id, ok = ParseID(value); !ok {
			return nil, odd
		}
		links = append(links, link{id, Commit})
	}
	if !strings.HasPrefix(rest, "author ") {
		return nil, odd
	}
	return links, nil
}

func tagLinks(content string) ([]link, error) {
	object, rest, found := header(content, "object")
	id, ok := ParseID(object)
	kind, _, typed := header(rest, "type")
	if found && ok && typed {
		for _, k := range []Kind{Commit, Tree, Blob, Tag} {
			if k.String() == kind {
				return []link{{id, k}}, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: not a tag as git writes it", ErrNotSmall)
}

// treeLinks reads entries "<mode> <name>\0<20 bytes>".
func treeLinks(content []byte) (links []link, err error) {
	for len(content) > 0 {
		end := bytes.IndexByte(content, 0)
		if end < 0 || len(content) < end+1+idBytes {
			return nil, fmt.Errorf("%w: not a tree as git writes it", ErrNotSmall)
		}
		mode, _, _ := bytes.Cut(content[:end], []byte(" "))
		id := ID(content[end+1 : end+1+idBytes])
		content = content[end+1+idBytes:]
		switch string(mode) {
		case "40000", "040000": // some old programs write the zero
			links = append(links, link{id, Tree})
		case "100644", "100755", "100664", "120000":
			links = append(links, link{id, Blob})
		case "160000": // a commit of a submodule, which is in another repository
		default:
			return nil, fmt.Errorf("%w: a tree entry of mode %q", ErrNotSmall, mode)
		}
	}
	return links, nil
}
