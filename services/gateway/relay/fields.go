package relay

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/tidwall/gjson"

	"tendril.dev/lib/nostr"
)

// MaxEventTags is the most tags of an event. A state event that names as many references as a
// message can hold stays below it.
const MaxEventTags = 10_000

const maxKind = 65535

// parseEvent reads an event, and its id even if something else is wrong. Fields that NIP-01 does
// not know are left out, because they are not part of what was signed.
func parseEvent(raw gjson.Result) (id string, ev *nostr.Event, err error) {
	if !raw.IsObject() {
		return "", nil, invalid("an event must be a JSON object")
	}
	if id = raw.Get("id").Str; !nostr.IsHex64(id) {
		return "", nil, invalid("an event's id must be 64 lower-case hex digits")
	}
	fields := map[string]gjson.Result{}
	if err := eachField(raw, func(name string, value gjson.Result) error {
		fields[name] = value
		return nil
	}); err != nil {
		return id, nil, err
	}
	ev = &nostr.Event{ID: id, PubKey: fields["pubkey"].Str, Sig: fields["sig"].Str, Content: fields["content"].Str}
	created, isTime := integer(fields["created_at"], math.MaxInt64)
	kind, isKind := integer(fields["kind"], maxKind)
	switch {
	case !nostr.IsHex64(ev.PubKey):
		return id, nil, invalid("an event's pubkey must be 64 lower-case hex digits")
	case len(ev.Sig) != 128 || !nostr.IsHex64(ev.Sig[:64]) || !nostr.IsHex64(ev.Sig[64:]):
		return id, nil, invalid("an event's sig must be 128 lower-case hex digits")
	case !isTime:
		return id, nil, invalid("an event's created_at must be a time in seconds")
	case !isKind:
		return id, nil, invalid("an event's kind must be a number from 0 to %d", maxKind)
	case fields["content"].Type != gjson.String:
		return id, nil, invalid("an event's content must be a string")
	}
	ev.CreatedAt, ev.Kind = nostr.Timestamp(created), int(kind)
	ev.Tags, err = parseTags(fields["tags"])
	return id, ev, err
}

func parseTags(raw gjson.Result) (tags nostr.Tags, err error) {
	tags = nostr.Tags{}
	isList := each(raw, func(values gjson.Result) bool {
		tag, areTexts := texts(values)
		switch {
		case !areTexts:
			err = invalid("an event's tags must be a list of lists of strings")
		case len(tag) == 0:
			err = invalid("a tag of an event must not be empty")
		case len(tags) == MaxEventTags:
			err = invalid("an event has at most %d tags", MaxEventTags)
		}
		tags = append(tags, tag)
		return err == nil
	})
	if !isList {
		err = invalid("an event's tags must be a list of lists of strings")
	}
	return tags, err
}

// parseFilter reads a filter. A condition that is not known is refused, because to overlook it
// would answer another question.
func (b bounds) parseFilter(raw gjson.Result) (f nostr.Filter, err error) {
	if !raw.IsObject() {
		return f, invalid("a filter must be a JSON object")
	}
	if err = eachField(raw, func(name string, value gjson.Result) error { return setField(&f, name, value) }); err != nil {
		return f, err
	}
	values := len(f.IDs) + len(f.Authors) + len(f.Kinds)
	for _, tagged := range f.Tags {
		values += len(tagged)
	}
	if values > b.values {
		return f, invalid("%d values in a filter, at most %d are taken", values, b.values)
	}
	return f, nil
}

func setField(f *nostr.Filter, name string, value gjson.Result) (err error) {
	switch {
	case name == "ids":
		f.IDs, err = keys(name, value)
	case name == "authors":
		f.Authors, err = keys(name, value)
	case name == "kinds":
		f.Kinds, err = kinds(value)
	case name == "since":
		f.Since, err = timestamp(name, value)
	case name == "until":
		f.Until, err = timestamp(name, value)
	case name == "limit":
		n, ok := integer(value, math.MaxInt64)
		if !ok {
			return invalid("limit must be a number of events")
		}
		f.Limit, f.LimitZero = int(min(n, math.MaxInt32)), n == 0
	case name == "search":
		return errors.New("unsupported: search (NIP-50) is not supported here")
	case len(name) == 2 && name[0] == '#' && isLetter(name[1]):
		values, ok := texts(value)
		if !ok {
			return invalid("%s must be a list of strings", name)
		}
		if f.Tags == nil {
			f.Tags = nostr.TagMap{}
		}
		f.Tags[name[1:]] = values
	default:
		return fmt.Errorf("unsupported: filters with %s are not supported here", clip(name))
	}
	return err
}

// keys reads a list of ids or public keys.
func keys(name string, raw gjson.Result) ([]string, error) {
	values, ok := texts(raw)
	if !ok {
		return nil, invalid("%s must be a list of strings", name)
	}
	for _, v := range values {
		if !nostr.IsHex64(v) {
			return nil, invalid("%s must be 64 lower-case hex digits each", name)
		}
	}
	return values, nil
}

func kinds(raw gjson.Result) ([]int, error) {
	kinds, good := []int{}, true
	isList := each(raw, func(value gjson.Result) bool {
		var k int64
		k, good = integer(value, maxKind)
		kinds = append(kinds, int(k))
		return good
	})
	if !isList || !good {
		return nil, invalid("kinds must be a list of numbers from 0 to %d", maxKind)
	}
	return kinds, nil
}

func timestamp(name string, raw gjson.Result) (*nostr.Timestamp, error) {
	n, ok := integer(raw, math.MaxInt64)
	if !ok {
		return nil, invalid("%s must be a time in seconds", name)
	}
	t := nostr.Timestamp(n)
	return &t, nil
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

// eachField gives the fields of an object to fn until it refuses one. None may come twice.
func eachField(object gjson.Result, fn func(name string, value gjson.Result) error) (err error) {
	seen := map[string]bool{}
	object.ForEach(func(name, value gjson.Result) bool {
		if seen[name.Str] {
			err = invalid("duplicate field %s", clip(name.Str))
		} else {
			err = fn(name.Str, value)
		}
		seen[name.Str] = true
		return err == nil
	})
	return err
}

// each gives the values of a list to fn until it returns false. It reports whether it is a list.
func each(list gjson.Result, fn func(value gjson.Result) bool) bool {
	if !list.IsArray() {
		return false
	}
	list.ForEach(func(_, value gjson.Result) bool { return fn(value) })
	return true
}

// texts reads a list of nothing but strings.
func texts(list gjson.Result) (values []string, ok bool) {
	values, ok = []string{}, true
	isList := each(list, func(value gjson.Result) bool {
		values = append(values, value.Str)
		ok = value.Type == gjson.String
		return ok
	})
	return values, ok && isList
}

// integer reads a number from 0 to most, written without fraction and exponent.
func integer(raw gjson.Result, most int64) (n int64, ok bool) {
	n, err := strconv.ParseInt(raw.Raw, 10, 64)
	return n, err == nil && raw.Type == gjson.Number && n >= 0 && n <= most
}
