package negentropy

import (
	"slices"

	"github.com/nbd-wtf/go-nostr"
)

// Bounds of the filter of one session: values, and bytes of them. strfry takes less than 64 KiB of
// values in a filter, and messages of 128 KiB.
const (
	mostValues = 1000
	mostBytes  = 65_000
)

// Chunk is a filter that is reconciled in one session in place of several that ask by the same tag.
type Chunk struct {
	Filter nostr.Filter
	Of     []int // which of the filters it stands for
}

// Chunks puts filters together that are by one tag alone and by the same one, because a relay may
// be asked by more values in a session than in a REQ: fewer sessions have fewer messages. All others
// stay as they are.
func Chunks(filters []nostr.Filter) (chunks []Chunk) {
	open := map[string]int{} // by tag, the chunk that may have room
	for n, f := range filters {
		tag, values := byTag(f)
		if tag == "" {
			chunks = append(chunks, Chunk{Filter: f, Of: []int{n}})
			continue
		}
		if at, found := open[tag]; found {
			c := &chunks[at]
			if have := c.Filter.Tags[tag]; len(have)+len(values) <= mostValues && size(have)+size(values) <= mostBytes {
				c.Filter.Tags[tag] = append(have, values...)
				c.Of = append(c.Of, n)
				continue
			}
		}
		open[tag] = len(chunks)
		chunks = append(chunks, Chunk{Filter: nostr.Filter{Tags: nostr.TagMap{tag: slices.Clone(values)}}, Of: []int{n}})
	}
	return chunks
}

// byTag returns the tag of a filter that is by one tag alone; "": it is not.
func byTag(f nostr.Filter) (tag string, values []string) {
	if len(f.Tags) != 1 || f.IDs != nil || f.Kinds != nil || f.Authors != nil || f.Since != nil || f.Until != nil || f.Search != "" {
		return "", nil
	}
	for tag, values = range f.Tags {
		return tag, values
	}
	return "", nil
}

func size(values []string) (n int) {
	for _, v := range values {
		n += len(v)
	}
	return n
}
