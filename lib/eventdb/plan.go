package eventdb

import (
	"slices"

	"github.com/nbd-wtf/go-nostr"
)

// plan says how a filter is answered: which ranges of one index are merged, and what of the filter they leave to be checked.
type plan struct {
	empty    bool
	ids      []id     // look these up; prefixes is not used
	prefixes [][]byte // ranges, each sorted by place; disjoint in events unless overlap is set
	overlap  bool     // one event may stand in several of the ranges
	kinds    []uint16 // check the posting's kind, if not nil
	load     bool     // the rest of the filter needs the event itself
}

// maxPairs bounds the author × kind combinations that are looked up one by one; more are cheaper to check than to seek.
const maxPairs = 512

// planOf picks the index for a filter. Events carry far fewer tags of one value than an author has events, and an author far fewer than
// there are of a kind, so that is the order of choice.
func planOf(f nostr.Filter) plan {
	if f.LimitZero || f.Search != "" || f.Limit < 0 || namesNothing(f) {
		return plan{empty: true}
	}
	kinds := validKinds(f.Kinds)
	authors := validIDs(f.Authors)
	ids := validIDs(f.IDs)
	if f.Kinds != nil && len(kinds) == 0 || f.Authors != nil && len(authors) == 0 || f.IDs != nil && len(ids) == 0 {
		return plan{empty: true}
	}
	if ids != nil {
		return plan{ids: ids, kinds: kinds, load: authors != nil || len(f.Tags) > 0}
	}
	if name, ok := bestTag(f.Tags); ok {
		p := plan{overlap: true, kinds: kinds, load: authors != nil || len(f.Tags) > 1}
		for _, value := range distinct(f.Tags[name]) {
			p.prefixes = append(p.prefixes, prefixTag(name[0], value))
		}
		return p
	}
	p := plan{load: len(f.Tags) > 0}
	switch {
	case authors != nil && kinds != nil && len(authors)*len(kinds) <= maxPairs:
		for _, a := range authors {
			for _, k := range kinds {
				p.prefixes = append(p.prefixes, prefixAuthorKind(a, k))
			}
		}
	case authors != nil:
		p.kinds = kinds
		for _, a := range authors {
			p.prefixes = append(p.prefixes, prefixAuthor(a))
		}
	case kinds != nil:
		for _, k := range kinds {
			p.prefixes = append(p.prefixes, prefixKind(k))
		}
	default:
		p.prefixes = [][]byte{{tableTime}}
	}
	return p
}

// namesNothing: a condition that is present and lists no value matches no event.
func namesNothing(f nostr.Filter) bool {
	if f.IDs != nil && len(f.IDs) == 0 || f.Authors != nil && len(f.Authors) == 0 || f.Kinds != nil && len(f.Kinds) == 0 {
		return true
	}
	for _, values := range f.Tags {
		if values != nil && len(values) == 0 {
			return true
		}
	}
	return f.Since != nil && f.Until != nil && *f.Since > *f.Until
}

// bestTag is the indexed tag condition with the fewest values.
func bestTag(tags nostr.TagMap) (string, bool) {
	best := ""
	for name, values := range tags {
		if !isIndexedTag(name) || values == nil {
			continue
		}
		if best == "" || len(values) < len(tags[best]) || len(values) == len(tags[best]) && name < best {
			best = name
		}
	}
	return best, best != ""
}

// validIDs gives the distinct ids that can exist; nil for nil.
func validIDs(list []string) []id {
	if list == nil {
		return nil
	}
	out := make([]id, 0, len(list))
	for _, s := range list {
		// Upper case decodes, but no event has it: the filter compares strings.
		if v, err := parseID(s); err == nil && isLower(s) {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b id) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(out)
}

func isLower(s string) bool {
	for i := range len(s) {
		if s[i] >= 'A' && s[i] <= 'Z' {
			return false
		}
	}
	return true
}

func validKinds(list []int) []uint16 {
	if list == nil {
		return nil
	}
	out := make([]uint16, 0, len(list))
	for _, k := range list {
		if k >= 0 && k <= 0xffff {
			out = append(out, uint16(k))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func distinct(list []string) []string {
	out := slices.Clone(list)
	slices.Sort(out)
	return slices.Compact(out)
}
