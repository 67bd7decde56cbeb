//! Interface common to all domains.

use super::{Platform, Queues};

/// A domain of any kind: reader-writer locks pause by its platform, whatever queue they are made of.
pub trait Domain: Sync {
    /// The platform that serves the locks.
    type Platform: Platform;

    /// That platform.
    fn platform(&self) -> &Self::Platform;

    /// Layout of its queues in memory; `None` if they are not in memory or their place is unknown.
    fn queues(&self) -> Option<Queues> {
        None
    }
}

/// Kinds of locks without memory of their own take the platform for a domain.
impl<P: Platform> Domain for P {
    type Platform = P;

    #[inline(always)]
    fn platform(&self) -> &P {
        self
    }
}

/// `domain!(Type<SIZE>)`: the domain's platform is its field `platform`. With `, queues` it has a method that tells of
/// its queues.
macro_rules! domain {
    ($domain:ident<$($size:ident),+> $(, $queues:ident)?) => {
        impl<P: $crate::Platform, $(const $size: usize),+> $crate::Domain for $domain<P, $($size),+> {
            type Platform = P;

            #[inline(always)]
            fn platform(&self) -> &P {
                &self.platform
            }
            $(
                fn queues(&self) -> Option<$crate::Queues> {
                    Some(self.$queues())
                }
            )?
        }
    };
}

pub(crate) use domain;
