package eventdb

import (
	"bytes"
	"cmp"
	"slices"

	"tendril.dev/lib/nostr"
)

// plan says how a filter is answered: which parts of the index are walked, and what of the filter
// they leave to be checked.
type plan struct {
	empty bool
	ids   []id // look these up; conditions is not used
	// conditions must all hold. Each is a list of ranges, sorted by place, of which one must have
	// the event. If the first has more than maxMerged ranges it is the only one, otherwise all
	// together have no more than that.
	conditions [][][]byte
	kinds      []uint16 // check the posting's kind, if not nil
	load       bool     // the rest of the filter needs the event itself
}

// planOf picks what to walk. Tags and authors are walked together, each leaping over what the
// others do not have; kinds are walked only if there is nothing else, because every posting tells
// its kind.
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
	p := plan{kinds: kinds}
	var all [][][]byte
	for name, values := range f.Tags {
		switch {
		case values == nil:
		case isIndexedTag(name):
			all = append(all, ranges(distinct(values), func(value string) []byte { return appendTag(nil, name[0], value) }))
		default:
			p.load = true
		}
	}
	if authors != nil {
		all = append(all, ranges(authors, func(author id) []byte { return appendAuthor(nil, author) }))
	}
	switch {
	case len(all) == 0 && kinds == nil:
		all = append(all, [][]byte{{tableEvent}})
	case len(all) == 0:
		all = append(all, ranges(kinds, func(kind uint16) []byte { return appendKind(nil, kind) }))
		p.kinds = nil
	}
	p.choose(all)
	return p
}

// choose takes the conditions with the fewest ranges, as many as may be open at once, and leaves
// the others to be checked.
func (p *plan) choose(all [][][]byte) {
	slices.SortFunc(all, func(a, b [][]byte) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), bytes.Compare(a[0], b[0]))
	})
	open := 0
	for i, c := range all {
		if open += len(c); i > 0 && open > maxMerged {
			p.load = true
			return
		}
		p.conditions = append(p.conditions, c)
	}
}

// ranges makes the prefix of each value's range.
func ranges[T any](values []T, prefix func(T) []byte) [][]byte {
	out := make([][]byte, 0, len(values))
	for _, value := range values {
		out = append(out, prefix(value))
	}
	return out
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

// validIDs returns the distinct ids that can exist; nil for nil.
func validIDs(list []string) []id {
	if list == nil {
		return nil
	}
	out := make([]id, 0, len(list))
	for _, s := range list {
		if v, err := parseID(s); err == nil {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b id) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(out)
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
