package config

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// Error is a wrong value of a setting, as one sentence for the operator.
type Error struct {
	Setting string // NGIT_X
	Value   string // as it was given; "": none, or one that must not be printed
	Reason  string // what is wrong with it, and what would be right
}

func (e *Error) Error() string {
	if e.Value == "" {
		return e.Setting + " " + e.Reason
	}
	return fmt.Sprintf("%s is %.200q: %s", e.Setting, e.Value, e.Reason)
}

// mappers makes kong read values our way: whatever they come from, a wrong one gives an *Error.
type mappers struct{}

// Apply implements kong.Option.
func (mappers) Apply(k *kong.Kong) error {
	for _, option := range []kong.Option{
		kong.TypeMapper(reflect.TypeFor[time.Duration](), text(decodeDuration)),
		kong.TypeMapper(reflect.TypeFor[[]string](), text(decodeList)),
		kong.TypeMapper(reflect.TypeFor[string](), text(decodeString)),
		kong.KindMapper(reflect.Int, text(decodeInt)),
		kong.KindMapper(reflect.Int64, text(decodeInt)),
		kong.TypeMapper(reflect.TypeFor[bool](), boolMapper{}),
	} {
		if err := option.Apply(k); err != nil {
			return err
		}
	}
	return nil
}

// text makes a mapper of a function that reads one value; what is wrong with it is the error.
func text(decode func(s string, target reflect.Value) error) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		if ctx.Scan.Peek().Type == kong.EOLToken {
			return &Error{Setting: "--" + ctx.Value.Name, Reason: "has no value: want --" + ctx.Value.Name + "=…"}
		}
		var s string
		if err := ctx.Scan.PopValueInto("value", &s); err != nil {
			return err
		}
		err := decode(s, target)
		if errors.Is(err, errNoNumber) && ctx.Value.Tag.Get("min") != "" {
			err = fmt.Errorf("%w from %s", err, rangeOf(ctx.Value.Tag.Get))
		}
		return wrong(ctx, s, err)
	}
}

func wrong(ctx *kong.DecodeContext, value string, err error) error {
	if err == nil {
		return nil
	}
	name := ctx.Value.Tag.Get("env")
	if name == "" {
		name = ctx.Value.ShortSummary()
	}
	return &Error{Setting: name, Value: value, Reason: err.Error()}
}

func decodeString(s string, target reflect.Value) error {
	target.SetString(strings.TrimSpace(s))
	return nil
}

// errNoNumber is what is wrong with a value that is no whole number, or one of more than 64 bits.
var errNoNumber = errors.New("want a whole number")

func decodeInt(s string, target reflect.Value) error {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return errNoNumber
	}
	target.SetInt(n)
	return nil
}

func decodeDuration(s string, target reflect.Value) error {
	d, err := time.ParseDuration(strings.TrimSpace(s))
	if err != nil {
		return fmt.Errorf("want a time with its unit, like 500ms, 30s, 5m or 24h")
	}
	target.SetInt(int64(d))
	return nil
}

// decodeList reads comma-separated values. A flag may also be repeated: the values add up.
func decodeList(s string, target reflect.Value) error {
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			target.Set(reflect.Append(target, reflect.ValueOf(item)))
		}
	}
	return nil
}

// boolMapper reads switches: --x, --x=false, --x false, NGIT_X=true.
type boolMapper struct{}

// IsBool tells kong that the flag needs no value.
func (boolMapper) IsBool() bool { return true }

// Decode implements kong.Mapper.
func (boolMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	next := ctx.Scan.Peek()
	s := strings.TrimSpace(fmt.Sprint(next.Value))
	on, legal := decodeBool(s)
	switch {
	case next.Type == kong.FlagValueToken && !legal:
		return wrong(ctx, s, fmt.Errorf("want true or false"))
	case next.Type == kong.FlagValueToken, next.Type == kong.UntypedToken && legal:
		ctx.Scan.Pop()
	default: // the switch alone; what comes next is not its value
		on = true
	}
	target.SetBool(on)
	return nil
}

func decodeBool(s string) (on, legal bool) {
	switch strings.ToLower(s) {
	case "true", "1", "yes", "on":
		return true, true
	case "false", "0", "no", "off":
		return false, true
	}
	return false, false
}
