package strfry

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"tendril.dev/lib/nostr"
)

// filter is a filter of NIP-01, in the form in which entries are compared with it.
type filter struct {
	ids          map[[32]byte]bool // nil: any
	kinds        map[string]bool   // by key of the index; nil: any
	authors      map[string]bool
	tags         []map[string]bool // of each tag that the filter names
	since, until *nostr.Timestamp
	limit        int
}

// keys are the conditions that the index has lists for.
func (f *filter) keys() (all []map[string]bool) {
	for _, keys := range append([]map[string]bool{f.kinds, f.authors}, f.tags...) {
		if keys != nil {
			all = append(all, keys)
		}
	}
	return all
}

// readFilter reads a filter strictly, and no more than the relay's limit of events.
func readFilter(raw json.RawMessage, most int) (*filter, error) {
	var items map[string]json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, errors.New("filter is not an object")
	}
	f := &filter{limit: most}
	for name, value := range items {
		if err := f.item(name, value); err != nil {
			return nil, err
		}
	}
	f.limit = min(f.limit, most)
	return f, nil
}

func (f *filter) item(name string, value json.RawMessage) (err error) {
	switch {
	case name == "ids":
		f.ids = map[[32]byte]bool{}
		return each(value, func(id string) error {
			raw, err := hex.DecodeString(id)
			if err != nil || len(raw) != 32 {
				return errors.New("filter item size 32 expected")
			}
			f.ids[[32]byte(raw)] = true
			return nil
		})
	case name == "authors":
		f.authors, err = keyed(value, authorKey)
	case name == "kinds":
		f.kinds = map[string]bool{}
		return each(value, func(kind int) error {
			f.kinds[kindKey(kind)] = true
			return nil
		})
	case name == "since":
		err = json.Unmarshal(value, &f.since)
	case name == "until":
		err = json.Unmarshal(value, &f.until)
	case name == "limit":
		if err = json.Unmarshal(value, &f.limit); err == nil && f.limit < 0 {
			err = errors.New("limit is negative")
		}
	case strings.HasPrefix(name, "#") && len(name) == 2:
		var values map[string]bool
		values, err = keyed(value, func(v string) string { return tagKey(name[1:], v) })
		f.tags = append(f.tags, values)
	default:
		err = errors.New("unrecognised filter item")
	}
	return err
}

// keyed reads a list of strings into keys of the index.
func keyed(value json.RawMessage, key func(string) string) (map[string]bool, error) {
	keys := map[string]bool{}
	return keys, each(value, func(v string) error {
		keys[key(v)] = true
		return nil
	})
}

func each[T any](value json.RawMessage, take func(T) error) error {
	var list []T
	if err := json.Unmarshal(value, &list); err != nil {
		return fmt.Errorf("filter item is no array of what it should have: %w", err)
	}
	for _, v := range list {
		if err := take(v); err != nil {
			return err
		}
	}
	return nil
}

func (f *filter) matches(e *entry) bool {
	switch {
	case f.ids != nil && !f.ids[e.item.ID],
		f.kinds != nil && !f.kinds[e.kind],
		f.authors != nil && !f.authors[e.author],
		f.since != nil && e.item.CreatedAt < *f.since,
		f.until != nil && e.item.CreatedAt > *f.until:
		return false
	}
	for _, values := range f.tags {
		if !e.tagged(values) {
			return false
		}
	}
	return true
}

func (e *entry) tagged(values map[string]bool) bool {
	for _, tag := range e.tags {
		if values[tag] {
			return true
		}
	}
	return false
}
