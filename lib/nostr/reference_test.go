package nostr_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	. "tendril.dev/lib/nostr"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for _, want := range []Address{
		{30617, alice, "a:b"}, {10317, alice, ""}, {0, alice, ""}, {3, alice, ""}, {39999, alice, "x"}, {30618, alice, ""},
	} {
		if got, err := ParseAddress(want.String()); err != nil || got != want {
			t.Errorf("ParseAddress(%q) = %v, %v", want, got, err)
		}
	}
	for _, s := range append(strings.Fields(`: 30617 30617: 30617:A :A:x +1:A:x 01:A:x 65536:A:x -1:A:x 999999999999999999999:A:x 30617:aaa:x 30617:BA:x 1e3:A:x
		30617::x 030617:A:x 10317:A 10317:A:x 10317:A:: 1:A: 20001:A:x 40000:A:x`), "", " 30617:A:x") {
		s = strings.ReplaceAll(strings.ReplaceAll(s, "BA", strings.ToUpper(alice)), "A:", alice+":")
		if got, err := ParseAddress(s); err == nil {
			t.Errorf("ParseAddress(%q) = %v, want an error", s, got)
		}
	}
}

func TestReferencesOf(t *testing.T) {
	t.Parallel()
	address := Address{KindAnnouncement, alice, "x"}
	list := Address{KindUserGraspList, bob, ""}
	ev := written("1111", "CAROL", "e,ID1;E,ID2;q,ID3;e,ID2;a,30617:ALICE:x;A,10317:BOB:;q,30618:ALICE:x;p,ID4;e,short;e,DAVE;a,ID5;e,30617:ALICE:x;ee,ID6;e;")
	got := ReferencesOf(ev)
	want := References{
		IDs:       []string{key('1'), key('2'), key('3')},
		Addresses: []Address{address, list, {KindState, alice, "x"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("ReferencesOf = %v, want %v", got, want)
	}
	if got := RootRefs(ev); !slices.Equal(got, []RepoRef{{alice, "x"}}) {
		t.Errorf("RootRefs = %v", got)
	}
	names := append([]string{address.String(), list.String(), want.Addresses[2].String()}, want.IDs...)
	if got := NamesOf(ev); !slices.Equal(got, names) {
		t.Errorf("NamesOf = %v, want %v", got, names)
	}
}

func FuzzParseRepoRef(f *testing.F) {
	for _, seed := range []string{"", "30617:", "30617:" + alice + ":x", "30617:" + alice + ":a:b", "30618:" + alice + ":x", "30617:" + alice + ":a\nb", "10317:" + alice + ":", "00:" + alice + ":"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if ref, err := ParseRepoRef(s); err == nil {
			if ref.String() != s || !IsHex64(ref.PubKey) || CheckIdentifier(ref.Identifier) != nil {
				t.Fatalf("ParseRepoRef(%q) = %#v", s, ref)
			}
			if address, err := ParseAddress(s); err != nil || address != ref.Address() {
				t.Fatalf("ParseAddress(%q) = %v, %v", s, address, err)
			}
		}
		if address, err := ParseAddress(s); err == nil {
			holder := event(address.Kind, address.PubKey, Tag{"d", address.Identifier})
			if at, ok := AddressOf(holder); address.String() != s || !ok || at != address {
				t.Fatalf("ParseAddress(%q) = %#v", s, address)
			}
		}
	})
}
