package message_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/gateway/message"
)

func TestNegentropy(t *testing.T) {
	t.Parallel()
	limits := message.Limits{Filters: 1, Values: 3, DefaultLimit: 500, MaxLimit: 5000}
	for data, want := range map[string]any{
		`["NEG-OPEN","a",{"kinds":[1]},"6100"]`:                   message.NegOpen{ID: "a", Filter: nostr.Filter{Kinds: []int{1}}, Size: 37, Message: []byte{0x61, 0}},
		`["NEG-OPEN","a",{},""]`:                                  message.NegOpen{ID: "a", Size: 22, Message: []byte{}},
		`["NEG-OPEN","a",{"limit":70000},"61"]`:                   message.NegOpen{ID: "a", Filter: nostr.Filter{Limit: 70000}, Size: 37, Message: []byte{0x61}},
		`["NEG-OPEN","a",{"limit":0},"61"]`:                       message.NegOpen{ID: "a", Filter: nostr.Filter{LimitZero: true}, Size: 33, Message: []byte{0x61}},
		`["NEG-MSG","a","61FF"]`:                                  message.NegMsg{ID: "a", Message: []byte{0x61, 0xff}},
		`["NEG-CLOSE","a"]`:                                       message.NegClose{ID: "a"},
		`["NEG-OPEN"]`:                                            `["NOTICE","invalid: NEG-OPEN needs a subscription id"]`,
		`["NEG-OPEN",1,{},"61"]`:                                  `["NOTICE","invalid: a subscription id must be a string"]`,
		`["NEG-OPEN","a"]`:                                        `["NEG-ERR","a","invalid: NEG-OPEN takes a subscription id, one filter and a message"]`,
		`["NEG-OPEN","a",{},16,"61"]`:                             `["NEG-ERR","a","invalid: NEG-OPEN takes a subscription id, one filter and a message"]`,
		`["NEG-OPEN","a",{"search":"x"},"61"]`:                    `["NEG-ERR","a","unsupported: search (NIP-50) is not supported here"]`,
		`["NEG-OPEN","a",{"kinds":[1,2,3,4]},"61"]`:               `["NEG-ERR","a","invalid: 4 values in a filter, at most 3 are taken"]`,
		`["NEG-OPEN","a","` + strings.Repeat("a", 64) + `","61"]`: `["NEG-ERR","a","invalid: a filter must be a JSON object"]`,
		`["NEG-OPEN","a",{},"6"]`:                                 `["NEG-ERR","a","invalid: a message of NIP-77 must be hex digits, two for each byte"]`,
		`["NEG-OPEN","a",{},61]`:                                  `["NEG-ERR","a","invalid: a message of NIP-77 must be a string"]`,
		`["NEG-MSG"]`:                                             `["NOTICE","invalid: NEG-MSG needs a subscription id"]`,
		`["NEG-MSG","a","zz"]`:                                    `["NEG-ERR","a","invalid: a message of NIP-77 must be hex digits, two for each byte"]`,
		`["NEG-MSG","a"]`:                                         `["NEG-ERR","a","invalid: NEG-MSG takes a subscription id and a message"]`,
		`["NEG-CLOSE"]`:                                           `["NOTICE","invalid: NEG-CLOSE needs a subscription id"]`,
	} {
		got, err := limits.Parse([]byte(data))
		var refused *message.Error
		if text, bad := want.(string); bad {
			if !errors.As(err, &refused) || string(refused.Answer()) != text {
				t.Errorf("%s: %v, %v; want %s", data, got, err, text)
			}
		} else if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", data, got, err, want)
		}
	}
	for got, want := range map[string]string{
		string(message.NegAnswer(`a"b`, []byte{0x61, 0xab})):     `["NEG-MSG","a\"b","61ab"]`,
		string(message.NegErr("a", "closed: x")):                 `["NEG-ERR","a","closed: x"]`,
		string(message.NegTooMany("a", "blocked: too many", 10)): `["NEG-ERR","a","blocked: too many",10]`,
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
