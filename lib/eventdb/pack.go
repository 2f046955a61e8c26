package eventdb

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
)

// An event's JSON is stored packed: a third of it is ids, keys and the signature, whose hex digits
// take half the room as bytes. No general compression does that, and it costs more. The JSON is cut
// into pairs of a literal part and a part in hex digits, each with its length in front: <length>
// <bytes as they are> <length> <bytes in place of two digits each> …

// leastHex is the shortest run of hex digits that is packed.
const leastHex = 32

var errPacked = errors.New("packed JSON is cut off")

// pack appends the packed form of raw to b.
func pack(b, raw []byte) []byte {
	for len(raw) > 0 {
		from, to := findHex(raw)
		b = append(binary.AppendUvarint(b, uint64(from)), raw[:from]...)
		b = binary.AppendUvarint(b, uint64(to-from)/2)
		b, _ = hex.AppendDecode(b, raw[from:to]) // findHex gives nothing but pairs of digits
		raw = raw[to:]
	}
	return b
}

// findHex finds the first long run of lower-case hex digits, an even number of them; both ends are
// the end of raw if there is none. A run covers one of any leastHex bytes in a row, so that not
// every byte has to be looked at.
func findHex(raw []byte) (from, to int) {
	for start := 0; ; {
		probe := start + leastHex - 1
		if probe >= len(raw) {
			return len(raw), len(raw)
		}
		from = probe + 1
		for from > start && hexDigit[raw[from-1]] {
			from--
		}
		to = probe
		for to < len(raw) && hexDigit[raw[to]] {
			to++
		}
		if to-from >= leastHex {
			return from, to - (to-from)%2
		}
		start = max(to, from)
	}
}

// hexDigit is a table because every byte of every event is looked up in it.
var hexDigit = func() (is [256]bool) {
	for _, c := range "0123456789abcdef" {
		is[c] = true
	}
	return is
}()

// unpack appends what was packed to b.
func unpack(b, packed []byte) ([]byte, error) {
	b = slices.Grow(b, 2*len(packed)) // as much as it may become
	for len(packed) > 0 {
		literal, rest, err := cut(packed)
		if err != nil {
			return nil, err
		}
		digits, rest, err := cut(rest)
		if err != nil {
			return nil, err
		}
		b, packed = hex.AppendEncode(append(b, literal...), digits), rest
	}
	return b, nil
}

// cut takes a part with its length in front off.
func cut(packed []byte) (part, rest []byte, err error) {
	n, size := binary.Uvarint(packed)
	if size <= 0 || n > uint64(len(packed)-size) {
		return nil, nil, errPacked
	}
	packed = packed[size:]
	return packed[:n], packed[n:], nil
}
