package eventdb

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/genuine"
)

// The tables. A key begins with its table's byte.
//
//	e <seq>                              → the event's JSON as logged, packed
//	i <id>                               → posting
//	t <place>                            → posting      every event
//	a <pubkey> <place>                   → posting      by author
//	k <kind> <place>                     → posting      by kind
//	g <letter> <hash of value> <place>   → posting      by single-letter tag
//	r <kind> <pubkey> <hash of d>        → <place> <seq>: who holds the coordinate
//	d <pubkey> <id>                      → nothing      deletion request by id
//	c <kind> <pubkey> <hash of d>        → <created_at> deletion request by coordinate, up to this time
//	z <expiration> <id>                  → nothing      when events expire
//	m <name>                             → what the index knows of itself
//
// A place is the inverted created_at and the id, 40 bytes, so that bytewise order is NIP-01's:
// newest first, and the lower id first among equals. A posting is <kind> <seq> and, of an event
// that expires, <expiration>: enough to pass over an event of the wrong kind, or one that is over,
// without loading it. So there is no table by author and kind, or by tag and kind: each table is
// one more entry for every event, and entries are what applying an event costs.
const (
	tableEvent     = 'e'
	tableID        = 'i'
	tableTime      = 't'
	tableAuthor    = 'a'
	tableKind      = 'k'
	tableTag       = 'g'
	tableHolder    = 'r'
	tableDeletedID = 'd'
	tableDeletedTo = 'c'
	tableExpiry    = 'z'
	tableMeta      = 'm'
)

const (
	idLen    = 32
	timeLen  = 8
	placeLen = timeLen + idLen
	// hashLen is how much of SHA-256 stands for a tag's value: 128 bits, so that the key is bounded
	// however long the value is, and nothing has to be loaded to tell values apart. Nobody can find
	// a value that meets one of somebody else's (2^128 tries). Two values of one's own that meet
	// take 2^64 tries, and bring little: a query for one of them returns events of the other too,
	// and events of one author whose d tags meet replace and delete each other.
	hashLen = 16
)

var (
	metaSeq   = []byte{tableMeta, 's'}
	metaLog   = []byte{tableMeta, 'l'}
	metaCount = []byte{tableMeta, 'n'}
)

type id [idLen]byte

// parseID reads 64 lower-case hex digits (NIP-01). Upper-case ones would decode, but no event has
// them.
func parseID(s string) (id, error) {
	var out id
	if !genuine.ReadHex(out[:], s) {
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

// posting is the value of an index entry.
type posting struct {
	seq    uint64
	kind   uint16
	expiry nostr.Timestamp // 0: never
}

func (p posting) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, p.kind)
	b = binary.AppendUvarint(b, p.seq)
	if p.expiry != 0 {
		b = binary.BigEndian.AppendUint64(b, uint64(p.expiry))
	}
	return b
}

func parsePosting(b []byte) (posting, error) {
	if len(b) > 2 {
		seq, size := binary.Uvarint(b[2:])
		p, rest := posting{seq: seq, kind: binary.BigEndian.Uint16(b)}, b[2+max(size, 0):]
		switch {
		case size <= 0:
		case len(rest) == 8:
			p.expiry = nostr.Timestamp(binary.BigEndian.Uint64(rest))
			return p, nil
		case len(rest) == 0:
			return p, nil
		}
	}
	return posting{}, fmt.Errorf("index posting of %d bytes", len(b))
}

func keyEvent(seq uint64) []byte { return appendEvent(nil, seq) }

func appendEvent(b []byte, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, tableEvent), seq)
}

// Keys of what is looked up for every event are arrays, so that they need not leave the stack of
// whoever asks the sieve first.
type (
	idKey        [1 + idLen]byte
	deletedIDKey [1 + 2*idLen]byte
)

func keyID(eid id) (key idKey) {
	key[0] = tableID
	copy(key[1:], eid[:])
	return key
}

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

func keyDeletedID(author, target id) (key deletedIDKey) {
	key[0] = tableDeletedID
	copy(key[1:], author[:])
	copy(key[1+idLen:], target[:])
	return key
}

func keyExpiry(at nostr.Timestamp, eid id) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{tableExpiry}, uint64(at)), eid[:]...)
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
