//! An operation has one function for each width, place of its operands, or condition: how they are named.

/// A function for the width at hand.
macro_rules! sized {
    ($width:expr, $function:path, [$($generic:ty),*] $(, $constant:expr)?) => {{
        use $function as function;
        match $width {
            8 => function::<B, $($generic,)* 8 $(, $constant)?> as Run<B>,
            16 => function::<B, $($generic,)* 16 $(, $constant)?>,
            32 => function::<B, $($generic,)* 32 $(, $constant)?>,
            64 => function::<B, $($generic,)* 64 $(, $constant)?>,
            _ => return None,
        }
    }};
}

/// A function for the width at hand, of an instruction without a form for 8 bits.
macro_rules! wide {
    ($width:expr, $function:path, [$($generic:ty),*] $(, $constant:expr)?) => {{
        use $function as function;
        match $width {
            16 => function::<B, $($generic,)* 16 $(, $constant)?> as Run<B>,
            32 => function::<B, $($generic,)* 32 $(, $constant)?>,
            64 => function::<B, $($generic,)* 64 $(, $constant)?>,
            _ => return None,
        }
    }};
}

/// A function for a condition, which it knows by the name given.
macro_rules! conditional {
    ($code:expr, $name:ident => $function:expr) => {
        conditional!($code, $name => $function; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($code:expr, $name:ident => $function:expr; $($number:literal)*) => {
        match $code {
            $($number => {
                const $name: u8 = $number;
                $function as Run<B>
            })*
            _ => return None,
        }
    };
}

/// A function whose only operand is read.
macro_rules! of_source {
    ($form:expr, $function:path) => {
        match $form.first {
            InRegister => sized!($form.width, $function, [First]),
            _ => sized!($form.width, $function, [InMemory]),
        }
    };
}

pub(super) use {conditional, of_source, sized, wide};
