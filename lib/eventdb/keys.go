package eventdb

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"tendril.dev/lib/nostr"
)

// The tables. A key begins with its table's byte.
//
//	t <place>                            → posting JSON     every event
//	i <id>                               → posting created_at
//	a <pubkey> <place>                   → posting          by author
//	k <kind> <place>                     → posting          by kind
//	g <letter> <hash of value> <place>   → posting          by single-letter tag
//	l <key> <hash of d> <place>          → posting          announcement by a key that it lists
//	r <kind> <pubkey> <hash of d>        → place            who holds the coordinate
//	d <pubkey> <id>                      → nothing          deletion request by id
//	c <kind> <pubkey> <hash of d>        → created_at       deletion request by coordinate, up to this time
//	f <kind> <pubkey> <hash of d>        → place            newest version that was deleted by its id
//	v <pubkey>                           → created_at       request to vanish, up to this time
//	n <key of d, c, f or v> <place>      → what it holds    the same by the request at this place
//	o <id>                               → keys of d c f v  what a request has set
//	x <expires> <id>                     → nothing          what leaves the log at that time
//	z <subject>                          → time, id         what was taken away, and lies in the log
//	y <pubkey> <hash of d>               → time, d          announcement that was taken away
//	w <pubkey>                           → created_at, time what is left to take away of an author
//	m <name>                             → what the index knows of itself
//
// A place is the inverted created_at and the id, 40 bytes, so that bytewise order is NIP-01's:
// newest first, and the lower id first among equals. The events themselves are in that order too:
// what a filter matches lies close together there, and is read by one iterator that moves forward.
//
// A posting is the kind and the expiration, or 0: enough to pass over an event of the wrong kind,
// or one that is over, without loading it. So there is no table by author and kind, or by tag and
// kind: each table is one more entry for every event, and entries are what applying an event costs.
// An event whose time is over stays where it is, as in the log.
const (
	tableEvent     = 't'
	tableID        = 'i'
	tableAuthor    = 'a'
	tableKind      = 'k'
	tableTag       = 'g'
	tableListed    = 'l'
	tableHolder    = 'r'
	tableDeletedID = 'd'
	tableDeletedTo = 'c'
	tableFloor     = 'f'
	tableVanished  = 'v'
	tableSetBy     = 'n'
	tableSet       = 'o'
	tableExpiring  = 'x'
	tableTaken     = 'z'
	tableGone      = 'y'
	tableRest      = 'w'
	tableMeta      = 'm'
)

const (
	idLen    = 32
	timeLen  = 8
	placeLen = timeLen + idLen
	// postingLen: two bytes of the kind, eight of the expiration.
	postingLen = 10
	// hashLen is how much of SHA-256 stands for a tag's value: 128 bits, so that the key is bounded
	// however long the value is, and nothing has to be loaded to tell values apart. A value that
	// collides with another author's takes 2^128 tries. Two values of one's own that collide take
	// 2^64 tries, and bring little: a query for one of them returns events of the other too, and
	// events of one author whose d tags collide replace and delete each other.
	hashLen = 16
)

var (
	metaSeq   = []byte{tableMeta, 's'} // the sequence of the log that was applied
	metaLast  = []byte{tableMeta, 'e'} // the last record that was applied, see position
	metaLog   = []byte{tableMeta, 'l'} // when the log was made
	metaRules = []byte{tableMeta, 'r'} // how the index is laid out, and what it keeps
)

type id = [idLen]byte

// Entry is what the index tells of an event without its JSON.
type Entry struct {
	CreatedAt nostr.Timestamp
	ID        [32]byte
	Kind      int
	Expires   nostr.Timestamp // 0: never (NIP-40)
}

// EntryOf is the entry that an event has. Of a request it has no end: what a request has taken away
// would come back with that. An error: its id is none.
func EntryOf(ev *nostr.Event) (Entry, error) {
	eid, err := parseID(ev.ID)
	e := Entry{ev.CreatedAt, eid, ev.Kind, Expiration(ev)}
	if isRequest(ev.Kind) {
		e.Expires = 0
	}
	return e, err
}

// Compare sorts newest first, and by id among equals: the order of answers, and of which event of
// an address takes the place of which (NIP-01).
func (e Entry) Compare(o Entry) int {
	return cmp.Or(cmp.Compare(o.CreatedAt, e.CreatedAt), bytes.Compare(e.ID[:], o.ID[:]))
}

func (e Entry) expired(now nostr.Timestamp) bool { return e.Expires != 0 && e.Expires < now }

// appendPlace appends the time so that bytewise order is newest first, over all of int64, and the
// id.
func (e Entry) appendPlace(b []byte) []byte {
	return append(binary.BigEndian.AppendUint64(b, ^(uint64(e.CreatedAt)^1<<63)), e.ID[:]...)
}

// placeOf reads the place at the end of a key.
func placeOf(key []byte) (e Entry) {
	p := key[len(key)-placeLen:]
	e.CreatedAt = nostr.Timestamp(^binary.BigEndian.Uint64(p) ^ 1<<63)
	copy(e.ID[:], p[timeLen:])
	return e
}

func (e Entry) appendPosting(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint16(b, uint16(e.Kind)), uint64(e.Expires))
}

// readPosting returns what follows the posting.
func (e *Entry) readPosting(b []byte) (rest []byte, err error) {
	if len(b) < postingLen {
		return nil, fmt.Errorf("index posting of %d bytes", len(b))
	}
	e.Kind = int(binary.BigEndian.Uint16(b))
	e.Expires = nostr.Timestamp(binary.BigEndian.Uint64(b[2:]))
	return b[postingLen:], nil
}

// parseID reads 64 lower-case hex digits (NIP-01). Upper-case ones would decode, but no event has
// them.
func parseID(s string) (out id, err error) {
	if !nostr.ReadHex(out[:], s) {
		err = fmt.Errorf("id or pubkey %.80q: want %d lower-case hex digits", s, 2*idLen)
	}
	return out, err
}

func (e Entry) key() []byte { return e.appendPlace([]byte{tableEvent}) }

func keyID(eid id) []byte { return append([]byte{tableID}, eid[:]...) }

// The prefixes of postings are appended to what a caller has.

func appendAuthor(b []byte, author id) []byte { return append(append(b, tableAuthor), author[:]...) }

func appendKind(b []byte, kind uint16) []byte {
	return binary.BigEndian.AppendUint16(append(b, tableKind), kind)
}

func appendTag(b []byte, letter byte, value string) []byte {
	h := hashOf(value)
	return append(append(b, tableTag, letter), h[:]...)
}

// appendListed is for the announcements of an identifier; "": of all.
func appendListed(b []byte, key id, identifier string) []byte {
	b = append(append(b, tableListed), key[:]...)
	if identifier == "" {
		return b
	}
	h := hashOf(identifier)
	return append(b, h[:]...)
}

func hashOf(value string) [hashLen]byte {
	var short [128]byte // most values fit, and then no copy is made on the heap
	sum := sha256.Sum256(append(short[:0], value...))
	return [hashLen]byte(sum[:hashLen])
}

// coordinate names the place that replaceable and addressable events replace each other in. It is a
// key without its table.
type coordinate []byte

// coordinateOf returns the coordinate of an event of a replaceable or addressable kind, nil for any
// other. A replaceable kind has no d.
func coordinateOf(kind int, author id, d string) coordinate {
	switch {
	case nostr.IsReplaceableKind(kind):
		d = ""
	case !nostr.IsAddressableKind(kind):
		return nil
	}
	h := hashOf(d)
	return append(append(binary.BigEndian.AppendUint16(nil, uint16(kind)), author[:]...), h[:]...)
}

func (c coordinate) key(table byte) []byte { return append([]byte{table}, c...) }

func keyDeletedID(author, target id) []byte {
	return append(append([]byte{tableDeletedID}, author[:]...), target[:]...)
}

// successor is the smallest key after every key with the prefix.
func successor(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// isIndexedTag: NIP-01 indexes tags whose name is one letter.
func isIndexedTag(name string) bool {
	return len(name) == 1 && (name[0] >= 'a' && name[0] <= 'z' || name[0] >= 'A' && name[0] <= 'Z')
}

// Expiration reads NIP-40's tag; 0 if there is none or it is no time.
func Expiration(ev *nostr.Event) nostr.Timestamp {
	for _, tag := range ev.Tags {
		if len(tag) >= 2 && tag[0] == "expiration" {
			at, err := strconv.ParseInt(tag[1], 10, 64)
			if err != nil || at <= 0 || at == math.MaxInt64 {
				return 0
			}
			return nostr.Timestamp(at)
		}
	}
	return 0
}
