package eventdb

import (
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
//	i <id>                               → created_at posting
//	a <pubkey> <place>                   → posting          by author
//	k <kind> <place>                     → posting          by kind
//	g <letter> <hash of value> <place>   → posting          by single-letter tag
//	r <kind> <pubkey> <hash of d>        → place            who holds the coordinate
//	d <pubkey> <id>                      → nothing          deletion request by id
//	c <kind> <pubkey> <hash of d>        → created_at       deletion request by coordinate, up to this time
//	m <name>                             → what the index knows of itself
//
// A place is the inverted created_at and the id, 40 bytes, so that bytewise order is NIP-01's:
// newest first, and the lower id first among equals. The events themselves are in that order too:
// what a filter matches lies close together there, and is read by one iterator that moves forward.
//
// A posting is the kind and the expiration, or 0: enough to pass over an event of the wrong kind, or
// one that is over, without loading it. So there is no table by author and kind, or by tag and kind:
// each table is one more entry for every event, and entries are what applying an event costs. An
// event whose time is over stays where it is, as in the log.
const (
	tableEvent     = 't'
	tableID        = 'i'
	tableAuthor    = 'a'
	tableKind      = 'k'
	tableTag       = 'g'
	tableHolder    = 'r'
	tableDeletedID = 'd'
	tableDeletedTo = 'c'
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
	metaLog   = []byte{tableMeta, 'l'} // when the log was made
	metaRules = []byte{tableMeta, 'r'} // how the index is laid out, and what it keeps
)

type id [idLen]byte

// parseID reads 64 lower-case hex digits (NIP-01). Upper-case ones would decode, but no event has
// them.
func parseID(s string) (id, error) {
	var out id
	if !nostr.ReadHex(out[:], s) {
		return out, fmt.Errorf("id or pubkey %.80q: want %d lower-case hex digits", s, 2*idLen)
	}
	return out, nil
}

// invertTime makes bytewise order newest first, over all of int64.
func invertTime(t nostr.Timestamp) uint64 { return ^(uint64(t) ^ 1<<63) }

func revertTime(v uint64) nostr.Timestamp { return nostr.Timestamp(^v ^ 1<<63) }

func appendPlace(b []byte, t nostr.Timestamp, eid id) []byte {
	b = binary.BigEndian.AppendUint64(b, invertTime(t))
	return append(b, eid[:]...)
}

// placeOf reads the last 40 bytes of an index key, which tell all of an entry but its kind.
func placeOf(key []byte) Entry {
	p := key[len(key)-placeLen:]
	var e Entry
	e.CreatedAt = revertTime(binary.BigEndian.Uint64(p))
	copy(e.ID[:], p[timeLen:])
	return e
}

// posting is what each index entry says of its event.
type posting struct {
	kind   uint16
	expiry nostr.Timestamp // 0: never
}

func postingOf(ev *nostr.Event) posting {
	return posting{kind: uint16(ev.Kind), expiry: Expiration(ev)}
}

func (p posting) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint16(b, p.kind), uint64(p.expiry))
}

// parsePosting reads a posting, and returns what stands behind it.
func parsePosting(b []byte) (p posting, rest []byte, err error) {
	if len(b) < postingLen {
		return p, nil, fmt.Errorf("index posting of %d bytes", len(b))
	}
	p.kind = binary.BigEndian.Uint16(b)
	p.expiry = nostr.Timestamp(binary.BigEndian.Uint64(b[2:]))
	return p, b[postingLen:], nil
}

func (p posting) expired(now nostr.Timestamp) bool { return p.expiry != 0 && p.expiry < now }

// located is what the table of ids says: where in time the event is, and its posting.
type located struct {
	created nostr.Timestamp
	posting
}

func (a located) append(b []byte) []byte {
	return a.posting.append(binary.BigEndian.AppendUint64(b, uint64(a.created)))
}

func parseLocated(b []byte) (a located, err error) {
	if len(b) < timeLen {
		return a, fmt.Errorf("entry of %d bytes in the table of ids", len(b))
	}
	a.created = nostr.Timestamp(binary.BigEndian.Uint64(b))
	a.posting, _, err = parsePosting(b[timeLen:])
	return a, err
}

func keyEvent(created nostr.Timestamp, eid id) []byte {
	return appendPlace(append(make([]byte, 0, 1+placeLen), tableEvent), created, eid)
}

func keyID(eid id) []byte { return append(append(make([]byte, 0, 1+idLen), tableID), eid[:]...) }

// The prefixes of postings are appended to what a caller has.

func appendAuthor(b []byte, author id) []byte {
	return append(append(b, tableAuthor), author[:]...)
}

func appendKind(b []byte, kind uint16) []byte {
	return binary.BigEndian.AppendUint16(append(b, tableKind), kind)
}

func appendTag(b []byte, letter byte, value string) []byte {
	h := hashOf(value)
	return append(append(b, tableTag, letter), h[:]...)
}

func hashOf(value string) [hashLen]byte {
	var short [128]byte // most values fit, and then no copy is made on the heap
	sum := sha256.Sum256(append(short[:0], value...))
	return [hashLen]byte(sum[:hashLen])
}

// coordinate names the place that replaceable and addressable events replace each other in.
type coordinate struct {
	kind   uint16
	author id
	d      [hashLen]byte
}

// coordinateOf returns the coordinate of an event of a replaceable or addressable kind. A
// replaceable kind has no d.
func coordinateOf(kind int, author id, d string) (coordinate, bool) {
	switch {
	case nostr.IsReplaceableKind(kind):
		return coordinate{kind: uint16(kind), author: author, d: hashOf("")}, true
	case nostr.IsAddressableKind(kind):
		return coordinate{kind: uint16(kind), author: author, d: hashOf(d)}, true
	}
	return coordinate{}, false
}

func (c coordinate) key(table byte) []byte {
	b := make([]byte, 0, 1+2+idLen+hashLen)
	b = binary.BigEndian.AppendUint16(append(b, table), c.kind)
	b = append(b, c.author[:]...)
	return append(b, c.d[:]...)
}

func keyDeletedID(author, target id) []byte {
	return append(append(append(make([]byte, 0, 1+2*idLen), tableDeletedID), author[:]...), target[:]...)
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
